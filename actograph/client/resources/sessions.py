"""`client.sessions`, and the session objects that it returns."""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray
from pydantic import PrivateAttr

from actograph.client.answers import path_of
from actograph.client.artifact_stores import ArtifactFiles
from actograph.client.hook_names import absent, stored_name
from actograph.client.pulls.session_files import find, plain_name
from actograph.client.queries import LONG_SECONDS, PAGE_SIZE, Order, SessionQuery, query_params
from actograph.client.resources import downloads
from actograph.client.retries import Params
from actograph.client.row_tensor import RowSource, RowTensor, ServiceRows, StoredRows
from actograph.client.transport import Transport
from actograph.contract import resources
from actograph.tensor_files import raw_array

_PATH = "/v1/activations/sessions"


class SessionHandle(resources.Session):
    """A session as the service last reported it. Its tensors are read when they are indexed."""

    _sessions: "Sessions" = PrivateAttr()
    _rows: RowSource = PrivateAttr()

    def __eq__(self, other: Any) -> bool:
        """Whether both have the same fields."""
        return isinstance(other, resources.Session) and bool(self.__dict__ == other.__dict__)

    def __hash__(self) -> int:
        return hash(self.id)

    def __getitem__(self, hook: str) -> RowTensor:
        """Return the tensor of a hook point or alias.

        Raises:
            NotFound: the session has no such tensor.
        """
        name = stored_name(hook, self.hooks)
        if name is None:
            raise absent(hook, self.hooks)
        return RowTensor(name, self.hooks[name], self._rows)

    def __contains__(self, hook: str) -> bool:
        return stored_name(hook, self.hooks) is not None

    def token_ids(self) -> NDArray[np.int64]:
        """Return the `[P + G]` token ids of prompt and generation."""
        return self._numbers("token_ids", 0, self.prompt_tokens + self.generated_tokens)

    def tokens_of(self, hook: str) -> NDArray[np.int64]:
        """Return the token index of every row of a tensor, ascending; for a summary, of every row it sums."""
        info = self[hook].info
        count = info.shape[0] if info.over is None else info.over
        if info.position_offset is None:
            return np.arange(info.first_row, info.first_row + count)
        return self._numbers("row_positions", info.position_offset, info.position_offset + count)

    def download(self, folder: str | Path) -> Path:
        """Download every file to `<folder>/<id>`, resumed and verified. Returns that folder."""
        target = Path(folder) / plain_name(self.id)
        target.mkdir(parents=True, exist_ok=True)
        for file in self.files:
            self._sessions.download_file(self, file.name, target / plain_name(file.name))
        return target

    def update(self, **change: Any) -> "SessionHandle":
        """Change `expires_at`, `pinned` or `tags`. Returns the changed session."""
        return self._sessions.update(self.id, **change)

    def delete(self) -> resources.Deleted:
        """Delete the session with its files."""
        return self._sessions.delete(self.id)

    def _numbers(self, name: str, start: int, stop: int) -> NDArray[np.int64]:
        data = self._rows.read(name, start, stop, 8)
        return raw_array("I64", (stop - start,), data)


class Sessions:
    """List, read, change and delete sessions."""

    def __init__(self, transport: Transport, store: ArtifactFiles | None) -> None:
        """`store`: where rows are read; None reads them through the service."""
        self._transport = transport
        self._store = store

    def get(self, session_id: str) -> SessionHandle:
        """Return one session: its hooks, shapes and files."""
        return self._bound(self._transport.call(SessionHandle, "GET", path_of(_PATH, session_id)))

    def list(
        self, *, order: Order = "desc", page_size: int = PAGE_SIZE, **filters: Unpack[SessionQuery]
    ) -> Iterator[SessionHandle]:
        """List sessions that match the filters of `SessionQuery`, newest first."""
        params: Params = {**query_params(filters), "order": order, "limit": page_size}
        for session in self._transport.items(SessionHandle, _PATH, params):
            yield self._bound(session)

    def stats(self, **filters: Unpack[SessionQuery]) -> resources.SessionStats:
        """Return the number and size of matching sessions."""
        return self._transport.call(
            resources.SessionStats, "GET", f"{_PATH}/stats", params=query_params(filters)
        )

    def update(self, session_id: str, **change: Any) -> SessionHandle:
        """Change a session's `expires_at` (Unix seconds; None keeps it forever), `pinned` or `tags`."""
        path = path_of(_PATH, session_id)
        return self._bound(self._transport.call(SessionHandle, "PATCH", path, json=change))

    def update_many(
        self,
        change: Mapping[str, Any],
        *,
        everything: bool = False,
        dry_run: bool = False,
        **filters: Unpack[SessionQuery],
    ) -> resources.SessionChange:
        """Change every matching session.

        Args:
            everything: required if there is no filter.
            dry_run: count only.
        """
        params: Params = {**query_params(filters), "all": everything or None, "dry_run": dry_run}
        return self._transport.call(
            resources.SessionChange, "PATCH", _PATH, params=params, json=dict(change), timeout=LONG_SECONDS
        )

    def delete(self, session_id: str) -> resources.Deleted:
        """Delete a session with its files."""
        return self._transport.call(resources.Deleted, "DELETE", path_of(_PATH, session_id))

    def delete_many(
        self,
        *,
        everything: bool = False,
        dry_run: bool = False,
        include_pinned: bool = False,
        **filters: Unpack[SessionQuery],
    ) -> resources.SessionDeletion:
        """Delete every matching session with its files, except pinned ones.

        Args:
            everything: required if there is no filter.
            dry_run: count only.
            include_pinned: delete pinned sessions too.
        """
        params: Params = {
            **query_params(filters), "all": everything or None, "dry_run": dry_run,
            "include_pinned": include_pinned,
        }  # fmt: skip
        return self._transport.call(
            resources.SessionDeletion, "DELETE", _PATH, params=params, timeout=LONG_SECONDS
        )

    def download_file(self, session: resources.Session | str, name: str, target: str | Path) -> Path:
        """Download one file of a session to `target`, resumed and verified; see `downloads.fetch`."""
        known = self.get(session) if isinstance(session, str) else session
        path = path_of(_PATH, known.id, "files", name)
        return downloads.fetch(self._transport, path, find(known.files, name), Path(target))

    def _bound(self, session: SessionHandle) -> SessionHandle:
        session._sessions = self
        if self._store is None:
            session._rows = ServiceRows(self._transport, session.id)
        else:
            session._rows = StoredRows(partial(self._store.tensors, session))
        return session
