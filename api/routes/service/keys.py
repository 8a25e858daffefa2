"""/v1/keys: API keys, for admins."""

from actograph.contract.resources import ListPage
from actograph.contract.service.keys import ApiKey, CreatedKey, KeyUpdate, NewKey
from api.dependencies import KeyId, PageDep, ServicesDep
from api.problems.validation import parse_body
from api.requests.request_body import JsonBody
from api.routing import ADMIN, Body, Routes
from storage.accounts import api_keys
from storage.index import pages

router = Routes(prefix="/v1/keys", tags=["keys"])

NEW = Body(
    NewKey,
    {
        "for one person": {"name": "laptop", "role": "submit", "owner": "alice"},
    },
)
UPDATE = Body(KeyUpdate, {"another quota": {"quota_bytes": 1 << 40}})


@router.add("POST", "", ADMIN, "Create an API key, shown only here", errors=[409], body=NEW, status_code=201)
def create_key(services: ServicesDep, body: JsonBody) -> CreatedKey:
    """Create a key. The first key must be an admin's; from then on every request needs a key."""
    new = parse_body(NewKey, body)
    with services.database.write() as session:
        row, key = api_keys.create(session, new, needs_admin=not services.settings.api_keys)
        shown = CreatedKey.of(api_keys.resource(row), key)
    return shown


@router.add("GET", "", ADMIN, "List keys, including revoked and expired ones")
def list_keys(services: ServicesDep, page: PageDep) -> ListPage[ApiKey]:
    with services.database.read() as session:
        rows, has_more = api_keys.find(session, **page)
        return pages.page(rows, has_more, api_keys.resource)


@router.add("GET", "/{key_id}", ADMIN, "One key, without its secret")
def get_key(services: ServicesDep, key_id: KeyId) -> ApiKey:
    with services.database.read() as session:
        return api_keys.resource(api_keys.get(session, key_id))


@router.add("PATCH", "/{key_id}", ADMIN, "Change the name or limits of a key", errors=[409], body=UPDATE)
def update_key(services: ServicesDep, key_id: KeyId, body: JsonBody) -> ApiKey:
    """Change a key. Its role and owner cannot change; create another key instead."""
    change = parse_body(KeyUpdate, body)
    with services.database.write() as session:
        shown = api_keys.resource(api_keys.update(session, key_id, change))
    return shown


@router.add("DELETE", "/{key_id}", ADMIN, "Revoke a key for good", errors=[409])
def revoke_key(services: ServicesDep, key_id: KeyId) -> ApiKey:
    """Revoke a key. The data of its owner stays."""
    with services.database.write() as session:
        row = api_keys.revoke(session, key_id, needs_admin=not services.settings.api_keys)
        shown = api_keys.resource(row)
    return shown
