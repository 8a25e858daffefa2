"""Analyses: the newest of each kind, and the figures that they stored."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from actograph.contract.analyses import ANALYSIS_KINDS
from actograph.contract.errors import NotFound
from api.auth import READ
from api.dependencies import ServicesDep, SessionId
from api.pages.live import digest
from api.pages.rendering import HEADERS, render
from api.routes.jobs import list_jobs
from api.routes.sessions import get_session
from storage.index.pages import PageOptions
from storage.sessions.writer import session_prefix

router = APIRouter(include_in_schema=False, dependencies=[READ])

SHOWN = 10


@router.get("/analyses")
def show_analyses(request: Request, services: ServicesDep) -> Response:
    state = digest(services)
    newest = {kind: list_jobs(services, PageOptions(limit=SHOWN), kind=kind).data for kind in ANALYSIS_KINDS}
    return render(request, "analyses.html", {"state": state, "newest": newest})


@router.get("/figures/{session_id}/{name}.svg")
def get_figure(services: ServicesDep, session_id: SessionId, name: str) -> Response:
    """A figure of an analysis, which pages show as an image."""
    sizes = {one.name: one.bytes for one in get_session(services, session_id).files}
    file = f"{name}.svg"
    if file not in sizes:
        raise NotFound(f"session {session_id} has no figure {name}")
    content = services.store.read(f"{session_prefix(session_id)}/{file}", 0, sizes[file])
    # matplotlib writes style attributes; as an image it can neither run scripts nor load anything
    policy = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox"}
    return Response(content, media_type="image/svg+xml", headers=HEADERS | policy)
