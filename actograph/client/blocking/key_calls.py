# Made of ../aio/key_calls.py by `python actograph/client/unasync.py`: change that file, not this one.
"""Calls about API keys; they need an admin's."""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from actograph.client.answers import path_of, read
from actograph.client.blocking.calls import Calls
from actograph.contract.service.keys import ApiKey, CreatedKey, KeyUpdate, NewKey


class KeyCalls(Calls):
    """Make, list, change and revoke API keys."""

    def create_key(self, new: NewKey) -> CreatedKey:
        """Make a key. The answer alone has it: where it is lost, revoke the key and make another."""
        answer = self._transport.request("POST", "/v1/keys", json=_json(new), repeatable=False)
        return read(CreatedKey, answer)

    def api_keys(self) -> Iterator[ApiKey]:
        """Every key, newest first, those that have ended included."""
        return self._items("/v1/keys", ApiKey, {})

    def update_key(self, key_id: str, change: KeyUpdate) -> ApiKey:
        """Change a key's name or limits."""
        return read(ApiKey, self._transport.request("PATCH", path_of("/v1/keys", key_id), json=_json(change)))

    def revoke_key(self, key_id: str) -> ApiKey:
        """End a key for good."""
        return read(ApiKey, self._transport.request("DELETE", path_of("/v1/keys", key_id)))


def _json(model: BaseModel) -> dict[str, Any]:
    return model.model_dump(mode="json", exclude_unset=True)
