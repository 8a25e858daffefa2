"""The session viewer: tokens and activations of one session, or of two side by side."""

from typing import Annotated

from fastapi import Query, Request
from starlette.responses import HTMLResponse, Response

from actograph.contract.errors import ActographError
from actograph.contract.resources import Session
from api.dependencies import Services, ServicesDep, SessionId, known_id
from api.pages.rendering import render
from api.routes.sessions import get_session
from api.routing import READ, Routes
from storage.index.pages import PageOptions
from storage.sessions import sessions, vectors
from storage.sessions.sessions import SessionFilter

router = Routes(include_in_schema=False)

#: vectors and sessions to choose from
OFFERED = 100
#: fields of a session that the viewer's scripts read
_ABOUT = {"id", "model", "prompt_tokens", "generated_tokens", "hooks"}


@router.add("GET", "/sessions/{session_id}/view", READ, "Session viewer", response_class=HTMLResponse)
def show_session_viewer(
    request: Request,
    services: ServicesDep,
    session_id: SessionId,
    other: Annotated[str, Query(alias="with", max_length=64)] = "",
) -> Response:
    shown = [get_session(services, session_id)]
    trouble = ""
    if other:
        try:
            shown.append(get_session(services, known_id(other, "ses", "session")))
        except ActographError as error:
            trouble = error.message
    page = PageOptions(limit=OFFERED, order="desc")
    with services.database.read() as session:
        offered = [vectors.info(row) for row in vectors.find(session, **page)[0]]
    widths = {hook.shape[1] for one in shown for hook in one.hooks.values()}
    values = {
        "sessions": shown,
        "about": [one.model_dump_json(include=_ABOUT) for one in shown],
        "other": other,
        "trouble": trouble,
        "vectors": [vector for vector in offered if vector.width in widths],
        "similar": _same_sample(services, shown[0]),
    }
    return render(request, "session_viewer.html", values)


def _same_sample(services: Services, shown: Session) -> list[Session]:
    """Sessions of the same problem under other conditions and epochs."""
    wanted = SessionFilter(job_id=shown.job_id, sample_index=shown.sample_index)
    with services.database.read() as session:
        rows, _ = sessions.find(session, wanted, limit=OFFERED, order="asc")
        found = sessions.resources_of(session, rows)
    return [one for one in found if one.id != shown.id]
