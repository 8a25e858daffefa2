"""What every group of calls stands on: a connection, and lists read page after page."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pydantic import BaseModel

from actograph.client.aio.transport import Transport
from actograph.client.answers import read, validate
from actograph.client.artifact_stores import ArtifactFiles
from actograph.client.transport import Params
from actograph.contract.resources import ListPage

if TYPE_CHECKING:
    from actograph.client.aio.client import AsyncClient

M = TypeVar("M", bound=BaseModel)


class Calls:
    """The base of the groups of calls that the client has."""

    _transport: Transport
    #: where session files are read past the service; None: through it
    _store: ArtifactFiles | None

    def _own(self) -> "AsyncClient":
        """The client that these calls are part of."""
        return cast("AsyncClient", self)

    async def _items(self, path: str, form: type[M], params: Params) -> AsyncIterator[M]:
        after: str | None = None
        while True:
            answer = await self._transport.request("GET", path, params={**params, "after": after})
            page = read(ListPage[Any], answer)
            for item in page.data:
                yield validate(form, item)
            if not page.has_more or page.last_id is None or page.last_id == after:
                return
            after = page.last_id

    async def _list(self, path: str, form: type[M]) -> list[M]:
        """A short list, read whole."""
        found = []
        async for item in self._items(path, form, {}):
            found.append(item)
        return found
