"""/v1/keys: API keys, which only admins see."""

from typing import Annotated

from fastapi import APIRouter, Depends

from actograph.contract.resources import ListPage
from actograph.contract.service.keys import ApiKey, CreatedKey, KeyUpdate, NewKey
from api.dependencies import PageDep, RingDep, Services, ServicesDep, known_id
from api.problems.errors import documented
from api.problems.validation import parse_body
from api.requests.request_body import body_of, json_body
from api.security.key_ring import KeyRing
from storage.accounts import api_keys
from storage.broker import key_changes
from storage.index import pages

router = APIRouter(prefix="/v1/keys", tags=["keys"])


@router.post(
    "",
    operation_id="create_key",
    summary="Make an API key, which is shown in this answer alone",
    status_code=201,
    response_model=CreatedKey,
    responses=documented(409, 413, 415, 422),
    openapi_extra=body_of("NewKey"),
)
def create_key(
    services: ServicesDep, ring: RingDep, body: Annotated[bytes, Depends(json_body)]
) -> CreatedKey:
    """The first key of a service must be an admin's: from then on every request needs a key."""
    new = parse_body(NewKey, body)
    with services.database.write() as session:
        row, key = api_keys.create(session, new, needs_admin=not services.settings.api_keys)
        shown = CreatedKey.of(api_keys.resource(row), key)
    _tell_all(services, ring)
    return shown


@router.get(
    "",
    operation_id="list_keys",
    summary="List keys, those that have ended included",
    response_model=ListPage[ApiKey],
    responses=documented(422),
)
def list_keys(services: ServicesDep, page: PageDep) -> ListPage[ApiKey]:
    with services.database.read() as session:
        rows, has_more = api_keys.find(session, after=page.after, limit=page.limit, order=page.order)
        return pages.page(rows, has_more, api_keys.resource)


@router.get(
    "/{key_id}",
    operation_id="get_key",
    summary="One key, without itself",
    response_model=ApiKey,
    responses=documented(404, 422),
)
def get_key(services: ServicesDep, key_id: str) -> ApiKey:
    with services.database.read() as session:
        return api_keys.resource(api_keys.get(session, known_id(key_id, "key", "key")))


@router.patch(
    "/{key_id}",
    operation_id="update_key",
    summary="Change a key's name or limits",
    response_model=ApiKey,
    responses=documented(404, 409, 413, 415, 422),
    openapi_extra=body_of("KeyUpdate"),
)
def update_key(
    services: ServicesDep, ring: RingDep, key_id: str, body: Annotated[bytes, Depends(json_body)]
) -> ApiKey:
    """Role and owner stay: for others there are other keys."""
    known_id(key_id, "key", "key")
    change = parse_body(KeyUpdate, body)
    with services.database.write() as session:
        shown = api_keys.resource(api_keys.update(session, key_id, change))
    _tell_all(services, ring)
    return shown


@router.delete(
    "/{key_id}",
    operation_id="revoke_key",
    summary="Revoke a key for good",
    response_model=ApiKey,
    responses=documented(404, 409, 422),
)
def revoke_key(services: ServicesDep, ring: RingDep, key_id: str) -> ApiKey:
    """Every process refuses it before this is answered. What its owner has stays; the row does too.

    Where the broker is away, the other processes refuse it within 3 seconds.
    """
    known_id(key_id, "key", "key")
    with services.database.write() as session:
        row = api_keys.revoke(session, key_id, needs_admin=not services.settings.api_keys)
        shown = api_keys.resource(row)
    _tell_all(services, ring)
    return shown


def _tell_all(services: Services, ring: KeyRing) -> None:
    """This process looks at the keys anew before its next answer, and so do the others."""
    ring.forget()
    key_changes.tell(services.settings.broker_url)
