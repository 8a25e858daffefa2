# Made of ../aio/calls.py by `python actograph/client/unasync.py`: change that file, not this one.
"""What every group of calls stands on: a connection, and lists read page after page."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pydantic import BaseModel

from actograph.client.answers import read, validate
from actograph.client.artifact_stores import ArtifactFiles
from actograph.client.blocking.transport import Transport
from actograph.client.transport import Params
from actograph.contract.resources import ListPage

if TYPE_CHECKING:
    from actograph.client.blocking.client import Client

M = TypeVar("M", bound=BaseModel)


class Calls:
    """The base of the groups of calls that the client has."""

    _transport: Transport
    #: where session files are read past the service; None: through it
    _store: ArtifactFiles | None

    def _own(self) -> "Client":
        """The client that these calls are part of."""
        return cast("Client", self)

    def _items(self, path: str, form: type[M], params: Params) -> Iterator[M]:
        after: str | None = None
        while True:
            answer = self._transport.request("GET", path, params={**params, "after": after})
            page = read(ListPage[Any], answer)
            for item in page.data:
                yield validate(form, item)
            if not page.has_more or page.last_id is None or page.last_id == after:
                return
            after = page.last_id

    def _list(self, path: str, form: type[M]) -> list[M]:
        """A short list, read whole."""
        found = []
        for item in self._items(path, form, {}):
            found.append(item)
        return found
