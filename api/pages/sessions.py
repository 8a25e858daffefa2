"""Stored sessions: search, one session, and the forms that pin, tag and delete it."""

import json
from typing import Annotated, Any

from fastapi import Form, Query, Request
from pydantic import BaseModel, Field
from starlette.responses import HTMLResponse, Response

from api.dependencies import Services, ServicesDep, SessionId
from api.pages.rendering import render, see_other
from api.routes import sessions as routes
from api.routing import READ, SUBMIT, Routes
from storage.index.pages import PageOptions
from storage.sessions.sessions import SessionFilter

router = Routes(include_in_schema=False)

PAGE = 50
_CHOICES = {"yes": True, "no": False}


class SearchQuery(BaseModel):
    """Fields of the search, as texts; "" means any."""

    job_id: str = Field("", max_length=64)
    model: str = Field("", max_length=1024)
    condition: str = Field("", max_length=64)
    tag: str = Field("", max_length=64)
    correct: str = Field("", max_length=8)
    pinned: str = Field("", max_length=8)

    def wanted(self, services: Services, *, created_before: float | None = None) -> SessionFilter:
        return SessionFilter(
            job_id=self.job_id or None,
            model=(self.model and (services.models.find(self.model) or self.model)) or None,
            condition=self.condition or None,
            tag=self.tag or None,
            correct=_CHOICES.get(self.correct),
            pinned=_CHOICES.get(self.pinned),
            created_before=created_before,
        )


class PagedQuery(SearchQuery):
    """A search and the page of its results."""

    after: str = Field("", max_length=64)


@router.add("GET", "/sessions", READ, "Sessions", response_class=HTMLResponse)
def show_sessions(request: Request, services: ServicesDep, query: Annotated[PagedQuery, Query()]) -> Response:
    page = PageOptions(limit=PAGE, order="desc", after=query.after or None)
    found = routes.list_sessions(services, query.wanted(services), page)
    filters = query.model_dump(exclude={"after"})
    values = {
        "sessions": found.data,
        "has_more": found.has_more,
        "last_id": found.last_id,
        "texts": {name: filters[name] for name in ("job_id", "model", "condition", "tag")},
        "filters": filters,
    }
    return render(request, "sessions.html", values)


@router.add("GET", "/sessions/totals", READ, "Number and size of matching sessions", lane="reads")
def show_totals(request: Request, services: ServicesDep, query: Annotated[SearchQuery, Query()]) -> Response:
    """The part of the list that counts; it reads every matching row, so the list does not wait for it."""
    stats = routes.get_session_stats(services, query.wanted(services))
    return render(request, "parts/totals.html", {"stats": stats})


@router.add("GET", "/sessions/{session_id}", READ, "One session", response_class=HTMLResponse)
def show_session(request: Request, services: ServicesDep, session_id: SessionId) -> Response:
    return render(request, "session.html", {"session": routes.get_session(services, session_id)})


@router.add("POST", "/sessions/{session_id}/pin", SUBMIT, "Pin or unpin a session", takes_form=True)
def pin_session(
    services: ServicesDep, session_id: SessionId, pinned: Annotated[bool, Form()] = False
) -> Response:
    return _change(services, session_id, pinned=pinned)


@router.add("POST", "/sessions/{session_id}/tags", SUBMIT, "Change the tags of a session", takes_form=True)
def tag_session(
    services: ServicesDep, session_id: SessionId, tags: Annotated[str, Form(max_length=8192)] = ""
) -> Response:
    """Replace all tags; the form separates them by commas."""
    chosen = [tag.strip() for tag in tags.split(",") if tag.strip()]
    return _change(services, session_id, tags=list(dict.fromkeys(chosen)))


@router.add("POST", "/sessions/{session_id}/delete", SUBMIT, "Delete a session")
def delete_session(services: ServicesDep, session_id: SessionId) -> Response:
    routes.delete_session(services, session_id)
    return see_other("/sessions")


def _change(services: ServicesDep, session_id: SessionId, **fields: Any) -> Response:
    routes.update_session(services, session_id, json.dumps(fields).encode())
    return see_other(f"/sessions/{session_id}")
