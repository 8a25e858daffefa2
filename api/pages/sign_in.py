"""The sign-in page: a browser sends its API key once and keeps it in a cookie."""

from typing import Annotated

from fastapi import APIRouter, Form, Request
from starlette.responses import Response

from actograph.contract.errors import Unauthorized
from api import browser
from api.auth import KeyRing
from api.dependencies import AllServicesDep
from api.pages.rendering import render, see_other

router = APIRouter(include_in_schema=False)


@router.get("/sign-in")
def show_sign_in(request: Request, next: str = "/") -> Response:
    return render(request, "sign_in.html", {"next": local(next), "trouble": ""})


@router.post("/sign-in")
def sign_in(
    request: Request,
    services: AllServicesDep,
    key: Annotated[str, Form(max_length=512)] = "",
    next: Annotated[str, Form(max_length=4096)] = "/",
) -> Response:
    browser.require_same_origin(request)
    try:
        KeyRing(services.settings).access_of(key.strip(), services.database)
    except Unauthorized:
        values = {"next": local(next), "trouble": "This key is not valid, was revoked or has expired."}
        return render(request, "sign_in.html", values, status=401)
    answer = see_other(local(next))
    browser.sign_in(answer, key.strip(), request)
    return answer


@router.post("/sign-out")
def sign_out(request: Request) -> Response:
    browser.require_same_origin(request)
    answer = see_other("/sign-in")
    browser.sign_out(answer, request)
    return answer


def local(path: str) -> str:
    """`path` if it is an address of this service, else the overview."""
    is_local = path.startswith("/") and not path.startswith("//") and "\\" not in path
    return path if is_local and path.isprintable() else "/"
