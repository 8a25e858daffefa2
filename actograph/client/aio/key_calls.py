"""Calls about API keys; they need an admin's."""

from collections.abc import AsyncIterator
from typing import Any

from pydantic import BaseModel

from actograph.client.aio.calls import Calls
from actograph.client.answers import path_of, read
from actograph.contract.service.keys import ApiKey, CreatedKey, KeyUpdate, NewKey


class KeyCalls(Calls):
    """Make, list, change and revoke API keys."""

    async def create_key(self, new: NewKey) -> CreatedKey:
        """Make a key. The answer alone has it: where it is lost, revoke the key and make another."""
        answer = await self._transport.request("POST", "/v1/keys", json=_json(new), repeatable=False)
        return read(CreatedKey, answer)

    def api_keys(self) -> AsyncIterator[ApiKey]:
        """Every key, newest first, those that have ended included."""
        return self._items("/v1/keys", ApiKey, {})

    async def update_key(self, key_id: str, change: KeyUpdate) -> ApiKey:
        """Change a key's name or limits."""
        return read(
            ApiKey, await self._transport.request("PATCH", path_of("/v1/keys", key_id), json=_json(change))
        )

    async def revoke_key(self, key_id: str) -> ApiKey:
        """End a key for good."""
        return read(ApiKey, await self._transport.request("DELETE", path_of("/v1/keys", key_id)))


def _json(model: BaseModel) -> dict[str, Any]:
    return model.model_dump(mode="json", exclude_unset=True)
