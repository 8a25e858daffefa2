# Generated from aio/resources/sessions.py by `python actograph/client/unasync.py`: edit that file.
"""`client.sessions`, and the session objects that it returns."""

import builtins
from collections.abc import Iterator, KeysView, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import numpy as np
from numpy.typing import NDArray
from pydantic import PrivateAttr

from actograph.client.answers import path_of
from actograph.client.artifact_stores import ArtifactFiles
from actograph.client.blocking.listing import Listing
from actograph.client.blocking.resources import downloads
from actograph.client.blocking.row_tensor import RowSource, RowTensor, ServiceRows, StoredRows
from actograph.client.blocking.runtime import aside
from actograph.client.blocking.transport import Transport
from actograph.client.hook_names import absent
from actograph.client.matrix.chosen_rows import NamedSpan, Segmented
from actograph.client.matrix.token_spans import tokens_of_text
from actograph.client.pulls.session_files import find, plain_name
from actograph.client.queries import LONG_SECONDS, PAGE_SIZE, Order, SessionQuery, query_params
from actograph.client.store_listing import listed
from actograph.client.transport import Params
from actograph.contract import resources
from actograph.contract.errors import NotFound
from actograph.contract.hooks import find_stored
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
        name = find_stored(hook, self.hooks)
        if name is None:
            raise absent(hook, self.hooks)
        return RowTensor(name, self.hooks[name], self._rows)

    def __contains__(self, hook: str) -> bool:
        return find_stored(hook, self.hooks) is not None

    def __iter__(self) -> Iterator[str]:  # type: ignore[override]  # pydantic yields pairs of fields
        """Yield the names of the hooks, as `in` tests them."""
        return iter(self.hooks)

    def keys(self) -> KeysView[str]:
        """Return the names of the hooks: `dict(session)` has a tensor for each."""
        return self.hooks.keys()

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

    def tokens(self) -> list[str]:
        """Return the text of each of the `[P + G]` tokens; joined, they are the whole text.

        A character of several tokens is the text of the last one.

        Raises:
            NotFound: the service does not have the tokenizer of the session's model.
        """
        return self._sessions.tokens(self.id)

    def at(self, text: str, hook: str | None = None, *, occurrence: int = 0) -> NDArray[np.int64]:
        """Return the tokens of a text: `session[hook][session.at("####", hook)]` are its rows.

        Args:
            hook: return rows of this tensor instead, for tensors of some tokens only.
            occurrence: 0 is the first one in prompt and generation, -1 the last.

        Raises:
            NotFound: the text does not occur so often, or none of its tokens has a row.
        """
        tokens = np.array(tokens_of_text(self.tokens(), text, occurrence), np.int64)
        rows = tokens[tokens < self.rows]  # the last generated token has none
        if hook is not None:
            rows = np.flatnonzero(np.isin(self.tokens_of(hook), tokens))
        if not len(rows):
            raise NotFound(f"no row of {hook or 'the session'} belongs to {text!r}")
        return rows

    def segments(self) -> list[NamedSpan]:
        """Return the named ranges of tokens: `prompt`, `think`, `answer`, `tool_call`, `tool_result`."""
        return self._sessions.segments(self.id)

    def download(self, folder: str | Path = ".") -> Path:
        """Download every file, resumed and verified.

        Returns:
            The session's folder, `<folder>/<id>`, for `actograph.client.tensors.open_folder`.
        """
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

    def __init__(
        self, transport: Transport, store: ArtifactFiles | None, *, may_be_alone: bool = False
    ) -> None:
        """`store`: where rows are read; None reads them through the service.

        `may_be_alone`: list the store itself if no service answers.
        """
        self._transport = transport
        self._store = store
        self._may_be_alone = may_be_alone and store is not None
        self._alone: bool | None = None

    def _store_alone(self) -> ArtifactFiles | None:
        """Return the store if there is no service."""
        if not self._may_be_alone:
            return None
        if self._alone is None:
            self._alone = not self._transport.listens()
        return self._store if self._alone else None

    def get(self, session_id: str) -> SessionHandle:
        """Return one session: its hooks, shapes and files."""
        store = self._store_alone()
        if store is not None:
            return self._of_store((aside(store.manifest, session_id)).session())
        return self._bound(self._transport.call(SessionHandle, "GET", path_of(_PATH, session_id)))

    def list(
        self, *, order: Order = "desc", page_size: int = PAGE_SIZE, **filters: Unpack[SessionQuery]
    ) -> Listing[SessionHandle]:
        """List sessions that match the filters of `SessionQuery`, newest first.

        The result is for a loop, `first()` or `one()`. Pages are fetched as needed.
        """
        return Listing(self._listed(order, page_size, filters), "session")

    def _listed(self, order: Order, page_size: int, filters: SessionQuery) -> Iterator[SessionHandle]:
        store = self._store_alone()
        if store is not None:
            for found in aside(listed, store, filters, order):
                yield self._of_store(found)
            return
        params: Params = {**query_params(filters), "order": order, "limit": page_size}
        for session in self._transport.items(SessionHandle, _PATH, params):
            yield self._bound(session)

    def stats(self, **filters: Unpack[SessionQuery]) -> resources.SessionStats:
        """Return the number and size of matching sessions."""
        store = self._store_alone()
        if store is not None:
            found = aside(listed, store, filters, "asc")
            sizes = {"bytes": sum(one.bytes for one in found), "rows": sum(one.rows for one in found)}
            return resources.SessionStats(sessions=len(found), **sizes)
        return self._transport.call(
            resources.SessionStats, "GET", f"{_PATH}/stats", params=query_params(filters)
        )

    def tokens(self, session_id: str) -> "builtins.list[str]":
        """Return the text of each token of a session; see `SessionHandle.tokens`."""
        path = path_of(_PATH, session_id, "tokens")
        found = self._transport.call(resources.SessionTokens, "GET", path)
        if found.texts is None:
            raise NotFound(f"no texts of the tokens of {session_id}: {found.no_texts}")
        return found.texts

    def segments(self, session_id: str) -> "builtins.list[NamedSpan]":
        """Return the named ranges of a session's tokens, from its manifest."""
        store = self._store_alone()
        if store is not None:
            return (aside(store.manifest, session_id)).segments
        path = path_of(_PATH, session_id, "manifest")
        return (self._transport.call(Segmented, "GET", path)).segments

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

    def _of_store(self, session: resources.Session) -> SessionHandle:
        return self._bound(SessionHandle.model_construct(**session.__dict__))

    def _bound(self, session: SessionHandle) -> SessionHandle:
        session._sessions = self
        if self._store is None:
            session._rows = ServiceRows(self._transport, session.id)
        else:
            session._rows = StoredRows(partial(self._store.tensors, session))
        return session
