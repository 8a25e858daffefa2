"""`client.keys`: API keys, for admins."""

from collections.abc import Iterator

from actograph.client.answers import path_of
from actograph.client.transport import Resource
from actograph.contract.service.keys import ApiKey, CreatedKey, KeyUpdate, NewKey


class Keys(Resource):
    """Create, list, update and revoke API keys."""

    def create(self, new: NewKey) -> CreatedKey:
        """Create a key. Only this answer contains it: if it is lost, revoke the key and create another."""
        body = new.model_dump(mode="json", exclude_unset=True)
        return self._transport.call(CreatedKey, "POST", "/v1/keys", json=body, repeatable=False)

    def list(self) -> Iterator[ApiKey]:
        """List keys, newest first, with revoked and expired keys."""
        return self._transport.items(ApiKey, "/v1/keys")

    def update(self, key_id: str, change: KeyUpdate) -> ApiKey:
        """Change a key's name or limits."""
        body = change.model_dump(mode="json", exclude_unset=True)
        return self._transport.call(ApiKey, "PATCH", path_of("/v1/keys", key_id), json=body)

    def revoke(self, key_id: str) -> ApiKey:
        """Revoke a key for good."""
        return self._transport.call(ApiKey, "DELETE", path_of("/v1/keys", key_id))
