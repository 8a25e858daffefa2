"""`client.keys`: API keys, for admins."""

from collections.abc import AsyncIterator

from actograph.client.aio.transport import Resource
from actograph.client.answers import path_of
from actograph.contract.service.keys import ApiKey, CreatedKey, KeyUpdate, NewKey


class Keys(Resource):
    """Create, list, update and revoke API keys."""

    async def create(self, new: NewKey) -> CreatedKey:
        """Create a key. Only this answer contains it: if it is lost, revoke the key and create another."""
        body = new.model_dump(mode="json", exclude_unset=True)
        return await self._transport.call(CreatedKey, "POST", "/v1/keys", json=body, repeatable=False)

    def list(self) -> AsyncIterator[ApiKey]:
        """List keys, newest first, with revoked and expired keys."""
        return self._transport.items(ApiKey, "/v1/keys")

    async def update(self, key_id: str, change: KeyUpdate) -> ApiKey:
        """Change a key's name or limits."""
        body = change.model_dump(mode="json", exclude_unset=True)
        return await self._transport.call(ApiKey, "PATCH", path_of("/v1/keys", key_id), json=body)

    async def revoke(self, key_id: str) -> ApiKey:
        """Revoke a key for good."""
        return await self._transport.call(ApiKey, "DELETE", path_of("/v1/keys", key_id))
