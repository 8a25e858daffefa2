"""Sessions: the list with its filters, and the form that changes many of them."""

from typing import Annotated, Literal

from fastapi import APIRouter, Form, Query, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from actograph.contract.errors import InvalidRequest
from actograph.contract.job_specs import validated
from actograph.contract.specs import SessionUpdate
from api.auth import READ, SUBMIT
from api.dependencies import Services, ServicesDep
from api.pages.problems import change_each
from api.pages.rendering import render, see_other
from api.routes.models import list_models
from api.routes.sessions import delete_session, get_session, list_sessions, update_session
from storage.index.pages import PageOptions
from storage.sessions.filter import SessionFilter

router = APIRouter(include_in_schema=False, dependencies=[READ])

PAGE = 50
Text = Annotated[str, Field(max_length=1024)]
Truth = Literal["", "yes", "no"]
_TRUTH = {"yes": True, "no": False}


class SessionListFilters(BaseModel):
    """Filters of the list, with the session that comes before the page; "" is no filter."""

    job: Text = ""
    model: Text = ""
    condition: Text = ""
    tag: Text = ""
    source: Text = ""
    correct: Truth = ""
    pinned: Truth = ""
    after: Text = ""


@router.get("/sessions")
def show_sessions(
    request: Request, services: ServicesDep, filters: Annotated[SessionListFilters, Query()]
) -> Response:
    wanted = validated(
        SessionFilter,
        {
            "job_id": filters.job.strip() or None,
            "model": (services.models.find(filters.model) or filters.model) or None,
            "condition": filters.condition or None,
            "tag": filters.tag or None,
            "source_session": filters.source.strip() or None,
            "correct": _TRUTH.get(filters.correct),
            "pinned": _TRUTH.get(filters.pinned),
        },
    )
    values = {
        "page": list_sessions(services, wanted, PageOptions(limit=PAGE, after=filters.after or None)),
        "texts": filters.model_dump(include={"job", "model", "condition", "tag", "source"}),
        "filters": filters.model_dump(exclude={"after"}),
        "models": [one.id for one in list_models(services).data],
    }
    return render(request, "sessions.html", values)


@router.post("/sessions", dependencies=[SUBMIT])
def change_sessions(
    request: Request,
    services: ServicesDep,
    *,
    filters: Annotated[SessionListFilters, Query()],
    action: Annotated[str, Form()],
    ids: Annotated[list[str], Form(max_length=PAGE, default_factory=list)],
    tag: Annotated[str, Form(max_length=64)] = "",
) -> Response:
    """Change the chosen sessions, then lead back to the list with its filters."""
    change_each(lambda session_id: _change(services, action, session_id, tag.strip()), ids, "sessions")
    return see_other(f"/sessions?{request.url.query}")


def _change(services: Services, action: str, session_id: str, tag: str) -> None:
    match action:
        case "delete":
            delete_session(services, session_id)
        case "pin" | "unpin":
            update_session(services, session_id, SessionUpdate(pinned=action == "pin"))
        case "tag" if tag:
            known = get_session(services, session_id).tags
            changed = validated(SessionUpdate, {"tags": list(dict.fromkeys([*known, tag]))})
            update_session(services, session_id, changed)
        case _:
            raise InvalidRequest("action is pin, unpin, delete, or tag with a tag", param="action")
