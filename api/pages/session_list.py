"""Sessions: the list with its filters, and the form that changes many of them."""

from typing import Annotated

from fastapi import APIRouter, Form, Query, Request
from starlette.responses import Response

from actograph.contract.errors import InvalidRequest
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
Text = Annotated[str, Query(max_length=1024)]
_TRUTH = {"yes": True, "no": False}


@router.get("/sessions")
def show_sessions(
    request: Request,
    services: ServicesDep,
    *,
    job: Text = "",
    model: Text = "",
    condition: Text = "",
    tag: Text = "",
    correct: Text = "",
    pinned: Text = "",
    after: Text = "",
) -> Response:
    wanted = SessionFilter(
        job_id=job.strip() or None,
        model=(services.models.find(model) or model) or None,
        condition=condition or None,
        tag=tag or None,
        correct=_TRUTH.get(correct),
        pinned=_TRUTH.get(pinned),
    )
    filters = {"job": job, "model": model, "condition": condition, "tag": tag}
    values = {
        "page": list_sessions(services, wanted, PageOptions(limit=PAGE, after=after or None)),
        "texts": filters,
        "filters": {**filters, "correct": correct, "pinned": pinned},
        "models": [one.id for one in list_models(services).data],
    }
    return render(request, "sessions.html", values)


@router.post("/sessions", dependencies=[SUBMIT])
def change_sessions(
    request: Request,
    services: ServicesDep,
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
            update_session(services, session_id, SessionUpdate(tags=list(dict.fromkeys([*known, tag]))))
        case _:
            raise InvalidRequest("action is pin, unpin, delete, or tag with a tag", param="action")
