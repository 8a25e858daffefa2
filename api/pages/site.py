"""All pages, with their files and errors."""

from mimetypes import guess_type

from fastapi import APIRouter, FastAPI
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, Response

from actograph import viewer
from api.auth import STATIC
from api.pages import (
    analyses,
    job,
    jobs,
    latents,
    live,
    live_sample,
    overview,
    problems,
    sample,
    service,
    session_list,
    session_values,
    sessions,
    sign_in,
    submit,
)  # fmt: skip
from api.pages.rendering import HERE

files = APIRouter(include_in_schema=False)

#: listed once, so that no path of a request reaches the file system
_FILES = {path.name: path for folder in (HERE / "static", viewer.STATIC) for path in folder.iterdir()}


@files.get(STATIC + "{name}")
def get_file(name: str) -> Response:
    if name not in _FILES:
        raise HTTPException(404)
    # `no-cache` asks for the file again, and gets 304 while it is the same
    headers = {"Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff"}
    return FileResponse(_FILES[name], headers=headers, media_type=guess_type(name)[0])


def install(app: FastAPI) -> None:
    """Add the pages to an application."""
    for module in (
        overview, jobs, job, latents, sample, session_list, sessions, session_values, submit, analyses,
        service, live, live_sample, sign_in,
    ):  # fmt: skip
        app.include_router(module.router)
    app.include_router(files)
    problems.install(app)
