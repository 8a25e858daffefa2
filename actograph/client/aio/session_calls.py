"""The calls about sessions."""

from collections.abc import AsyncIterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from numpy.typing import NDArray

from actograph import tensor_files
from actograph.client.aio import downloads
from actograph.client.aio.calls import Calls
from actograph.client.aio.handles import SessionHandle
from actograph.client.aio.row_tensor import RowSource, ServiceRows, StoredRows
from actograph.client.answers import path_of, read
from actograph.client.errors import UnexpectedAnswer
from actograph.client.queries import (
    LONG_SECONDS,
    PAGE_SIZE,
    Order,
    Rows,
    SessionQuery,
    from_the_end,
    given,
    rows_text,
)
from actograph.client.session_files import find
from actograph.client.transport import Params
from actograph.contract import resources

_SESSIONS = "/v1/activations/sessions"


class SessionCalls(Calls):
    """Sessions and their files."""

    async def sessions(
        self,
        *,
        order: Order = "desc",
        page_size: int = PAGE_SIZE,
        **wanted: Unpack[SessionQuery],
    ) -> AsyncIterator[SessionHandle]:
        """Every session that fits the filters of `SessionQuery`, newest first."""
        params: Params = {**given(wanted), "order": order, "limit": page_size}
        async for session in self._items(_SESSIONS, SessionHandle, params):
            yield self._bound_session(session)

    async def session_stats(self, **wanted: Unpack[SessionQuery]) -> resources.SessionStats:
        """Number and size of the sessions that fit."""
        answer = await self._transport.request("GET", f"{_SESSIONS}/stats", params=given(wanted))
        return read(resources.SessionStats, answer)

    async def session(self, session_id: str) -> SessionHandle:
        """One session: its hooks, shapes and files."""
        answer = await self._transport.request("GET", path_of(_SESSIONS, session_id))
        return self._bound_session(read(SessionHandle, answer))

    async def delete_session(self, session_id: str) -> resources.Deleted:
        """Remove a session with its files."""
        return read(
            resources.Deleted, await self._transport.request("DELETE", path_of(_SESSIONS, session_id))
        )

    async def update_session(self, session_id: str, **change: Any) -> SessionHandle:
        """Change a session's `expires_at` (Unix seconds, None keeps it), `pinned` or `tags`."""
        answer = await self._transport.request("PATCH", path_of(_SESSIONS, session_id), json=change)
        return self._bound_session(read(SessionHandle, answer))

    async def update_sessions(
        self,
        change: Mapping[str, Any],
        *,
        everything: bool = False,
        dry_run: bool = False,
        **wanted: Unpack[SessionQuery],
    ) -> resources.SessionChange:
        """`update_session` for every session that fits.

        Args:
            everything: needed where no filter is given.
            dry_run: only count what would change.
        """
        params: Params = {**given(wanted), "all": everything or None, "dry_run": dry_run}
        answer = await self._transport.request(
            "PATCH", _SESSIONS, params=params, json=dict(change), timeout=LONG_SECONDS
        )
        return read(resources.SessionChange, answer)

    async def delete_sessions(
        self,
        *,
        everything: bool = False,
        dry_run: bool = False,
        include_pinned: bool = False,
        **wanted: Unpack[SessionQuery],
    ) -> resources.SessionDeletion:
        """Remove every session that fits with its files; pinned ones stay.

        Args:
            everything: needed where no filter is given.
            dry_run: only count what would go.
            include_pinned: remove pinned sessions too.
        """
        params: Params = {
            **given(wanted), "all": everything or None, "dry_run": dry_run, "include_pinned": include_pinned,
        }  # fmt: skip
        answer = await self._transport.request("DELETE", _SESSIONS, params=params, timeout=LONG_SECONDS)
        return read(resources.SessionDeletion, answer)

    async def tensor(self, session_id: str, hook: str, rows: Rows | None = None) -> NDArray[Any]:
        """Rows of one hook's tensor, shape `[rows, width]`; bfloat16 comes as float32, which is exact.

        Args:
            rows: `(start, stop)`, a slice without a step, or the service's own `"start:stop"`; all
                rows where none are named. Negative numbers count from the end, which takes a request more.
        """
        if from_the_end(rows):
            start, stop = (rows.start, rows.stop) if isinstance(rows, slice) else rows
            return await (await self.session(session_id))[hook][start:stop]
        path = path_of(_SESSIONS, session_id, "tensors", hook)
        params = {"format": "safetensors", "rows": rows_text(rows)}
        data = (await self._transport.request("GET", path, params=params)).content
        header = tensor_files.read_header(lambda offset, length: data[offset : offset + length], len(data))
        if len(header.tensors) != 1:
            raise UnexpectedAnswer(
                f"the service sent {len(header.tensors)} tensors for {hook}, one was asked for"
            )
        entry = next(iter(header.tensors.values()))
        return tensor_files.value_array(entry.dtype, entry.shape, data[entry.start : entry.stop])

    def _bound_session(self, session: SessionHandle) -> SessionHandle:
        """The session, told where it came from."""
        store = self._store
        source: RowSource
        if store is None:
            source = ServiceRows(self._transport, session.id)
        else:
            source = StoredRows(partial(store.tensors, session))
        session._client, session._rows = self._own(), source
        return session

    async def download_file(self, session_id: str, name: str, target: str | Path) -> Path:
        """Fetch one file of a session to `target`, resumed and checked; see `downloads.fetch`."""
        file = find((await self.session(session_id)).files, name)
        return await self.download(session_id, file, Path(target))

    async def download(self, session_id: str, file: resources.SessionFile, target: Path) -> Path:
        """`download_file` for a caller that has the session's list of files already."""
        return await downloads.fetch(
            self._transport, path_of(_SESSIONS, session_id, "files", file.name), file, target
        )
