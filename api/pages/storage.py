"""Storage by owner, and the keys of the owners."""

from typing import Annotated

from fastapi import APIRouter, Form, Request
from starlette.responses import Response

from actograph.contract.operations import NewKey
from actograph.roles import Role
from api.auth import ADMIN, READ
from api.dependencies import KeyId, Services, ServicesDep
from api.pages.rendering import render, see_other
from api.routes.keys import create_key, list_keys, revoke_key
from api.routes.sessions import get_store_usage
from storage.index.pages import PageOptions

router = APIRouter(include_in_schema=False, dependencies=[READ])

PAGE = 100


@router.get("/storage")
def show_storage(request: Request, services: ServicesDep) -> Response:
    return render(request, "storage.html", {"usage": get_store_usage(services)})


@router.get("/keys", dependencies=[ADMIN])
def show_keys(request: Request, services: ServicesDep, after: str = "") -> Response:
    return _keys(request, services, after=after)


@router.post("/keys", dependencies=[ADMIN])
def make_key(
    request: Request,
    services: ServicesDep,
    name: Annotated[str, Form()],
    role: Annotated[Role, Form()],
    owner: Annotated[str, Form()] = "",
) -> Response:
    """Create a key, and show it in the answer: no address leads to it again."""
    made = create_key(services, NewKey(name=name, role=role, owner=owner.strip() or None))
    return _keys(request, services, made=made.key)


@router.post("/keys/{key_id}", dependencies=[ADMIN])
def revoke(services: ServicesDep, key_id: KeyId) -> Response:
    revoke_key(services, key_id)
    return see_other("/keys")


def _keys(request: Request, services: Services, *, after: str = "", made: str = "") -> Response:
    page = list_keys(services, PageOptions(limit=PAGE, after=after or None))
    return render(request, "keys.html", {"page": page, "made": made, "roles": list(Role)})
