"""/v1/keys: API keys, for admins."""

from fastapi import APIRouter

from actograph.contract.base import ListPage
from actograph.contract.operations import ApiKey, CreatedKey, KeyUpdate, NewKey
from api.auth import ADMIN
from api.dependencies import KeyId, PageDep, ServicesDep
from storage.accounts import api_keys
from storage.index import pages

router = APIRouter(prefix="/v1/keys", tags=["keys"], dependencies=[ADMIN])


@router.post("", summary="Create an API key, shown only here", status_code=201)
def create_key(services: ServicesDep, new: NewKey) -> CreatedKey:
    """Create a key. The first key must be an admin's; from then on every request needs a key."""
    with services.database.write() as session:
        row, key = api_keys.create(session, new, needs_admin=not services.settings.api_keys)
        return CreatedKey(**dict(api_keys.resource(row)), key=key)


@router.get("", summary="List keys, including revoked and expired ones")
def list_keys(services: ServicesDep, page: PageDep) -> ListPage[ApiKey]:
    with services.database.read() as session:
        return pages.page(*api_keys.find(session, **page), api_keys.resource)


@router.get("/{key_id}", summary="One key, without its secret")
def get_key(services: ServicesDep, key_id: KeyId) -> ApiKey:
    with services.database.read() as session:
        return api_keys.resource(api_keys.get(session, key_id))


@router.patch("/{key_id}", summary="Change the name or limits of a key")
def update_key(services: ServicesDep, key_id: KeyId, change: KeyUpdate) -> ApiKey:
    """Change a key. Its role and owner cannot change; create another key instead."""
    with services.database.write() as session:
        return api_keys.resource(api_keys.update(session, key_id, change))


@router.delete("/{key_id}", summary="Revoke a key for good")
def revoke_key(services: ServicesDep, key_id: KeyId) -> ApiKey:
    """Revoke a key. The data of its owner stays."""
    with services.database.write() as session:
        row = api_keys.revoke(session, key_id, needs_admin=not services.settings.api_keys)
        return api_keys.resource(row)
