"""The sign-in page and the dashboard's own files."""

from mimetypes import guess_type
from typing import Annotated

from fastapi import Form, Request
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, HTMLResponse, Response

from api.dependencies import AllServicesDep, RingDep
from api.pages.rendering import HERE, render, see_other
from api.routing import READ, Routes
from api.security import browser

router = Routes(include_in_schema=False)

STATIC = HERE / "static"
#: names of the files, listed once: no path of a request reaches the file system
_NAMES = {path.name: path for path in STATIC.iterdir() if path.is_file()}
MAX_KEY_CHARACTERS = 512


@router.add("GET", "/static/{name}", READ, "A file of the dashboard")
def get_static_file(name: str) -> Response:
    path = _NAMES.get(name)
    if path is None:
        raise HTTPException(404)
    headers = {"Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff"}
    return FileResponse(path, headers=headers, media_type=guess_type(name)[0])


@router.add("GET", "/sign-in", READ, "Sign in", response_class=HTMLResponse)
def show_sign_in(request: Request, ring: RingDep, services: AllServicesDep, next: str = "/") -> Response:
    ring.refresh(services.database)
    if not ring.is_needed:
        return see_other(local(next))
    return render(request, "sign_in.html", {"next": local(next), "trouble": ""})


@router.add("POST", "/sign-in", READ, "Sign in with an API key", takes_form=True)
async def sign_in(
    request: Request,
    ring: RingDep,
    services: AllServicesDep,
    key: Annotated[str, Form()] = "",
    next: Annotated[str, Form()] = "/",
) -> Response:
    browser.require_same_origin("POST", request.headers)
    key = key.strip()[:MAX_KEY_CHARACTERS]
    await run_in_threadpool(ring.refresh, services.database, key)
    if ring.find(key) is None:
        values = {"next": local(next), "trouble": "This key is not valid, was revoked or has expired."}
        return render(request, "sign_in.html", values, status=401)
    answer = see_other(local(next))
    browser.sign_in(answer, key, secure=request.url.scheme == "https")
    return answer


@router.add("POST", "/sign-out", READ, "Sign out")
async def sign_out() -> Response:
    answer = see_other("/sign-in")
    browser.sign_out(answer)
    return answer


def local(path: str) -> str:
    """`path` if it is an address of this service, else the overview."""
    is_local = path.startswith("/") and not path.startswith(("//", "/\\")) and "\\" not in path
    return path if is_local and path.isprintable() else "/"
