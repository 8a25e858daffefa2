"""The calls about sessions and the store; `http.Client` has them."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypedDict, TypeVar, Unpack

from numpy.typing import NDArray
from pydantic import BaseModel

from actograph import tensor_files
from actograph.client import downloads
from actograph.client.answers import path_of, read, validate
from actograph.client.errors import UnexpectedAnswer
from actograph.client.transport import Params, Transport
from actograph.contract import resources
from actograph.contract.errors import InvalidRequest
from actograph.contract.resources import ListPage

M = TypeVar("M", bound=BaseModel)
P = TypeVar("P", resources.StoreGc, resources.StoreVerification)
Order = Literal["asc", "desc"]
Rows = tuple[int, int] | slice | str

PAGE_SIZE = 100
#: a request that works through many sessions is answered when it is done
LONG_SECONDS = 3600.0
_SESSIONS = "/v1/activations/sessions"


class SessionQuery(TypedDict, total=False):
    """The filters of sessions; what is None or not named asks nothing. Times are Unix seconds."""

    job_id: str | None
    model: str | None
    condition: str | None
    sample_index: int | None
    correct: bool | None
    tag: str | None
    owner: str | None
    pinned: bool | None
    created_after: float | None
    created_before: float | None
    expires_before: float | None


class SessionCalls:
    """Sessions, and the store that holds their files."""

    _transport: Transport

    def sessions(
        self,
        *,
        order: Order = "desc",
        page_size: int = PAGE_SIZE,
        **wanted: Unpack[SessionQuery],
    ) -> Iterator[resources.Session]:
        """Every session that fits the filters of `SessionQuery`, newest first."""
        params: Params = {**_query(wanted), "order": order, "limit": page_size}
        return self._items(_SESSIONS, resources.Session, params)

    def session_stats(self, **wanted: Unpack[SessionQuery]) -> resources.SessionStats:
        """Number and size of the sessions that fit."""
        answer = self._transport.request("GET", f"{_SESSIONS}/stats", params=_query(wanted))
        return read(resources.SessionStats, answer)

    def session(self, session_id: str) -> resources.Session:
        """One session: its hooks, shapes and files."""
        return read(resources.Session, self._transport.request("GET", path_of(_SESSIONS, session_id)))

    def delete_session(self, session_id: str) -> resources.Deleted:
        """Remove a session with its files."""
        return read(resources.Deleted, self._transport.request("DELETE", path_of(_SESSIONS, session_id)))

    def update_session(self, session_id: str, **change: Any) -> resources.Session:
        """Change a session's `expires_at` (Unix seconds, None keeps it), `pinned` or `tags`."""
        answer = self._transport.request("PATCH", path_of(_SESSIONS, session_id), json=change)
        return read(resources.Session, answer)

    def update_sessions(
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
        params: Params = {**_query(wanted), "all": everything or None, "dry_run": dry_run}
        answer = self._transport.request(
            "PATCH", _SESSIONS, params=params, json=dict(change), timeout=LONG_SECONDS
        )
        return read(resources.SessionChange, answer)

    def delete_sessions(
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
            **_query(wanted), "all": everything or None, "dry_run": dry_run, "include_pinned": include_pinned,
        }  # fmt: skip
        answer = self._transport.request("DELETE", _SESSIONS, params=params, timeout=LONG_SECONDS)
        return read(resources.SessionDeletion, answer)

    def tensor(self, session_id: str, hook: str, rows: Rows | None = None) -> NDArray[Any]:
        """Rows of one hook's tensor, shape `[rows, width]`; bfloat16 comes as float32, which is exact.

        Args:
            rows: `(start, stop)`, a slice without a step, or the service's own `"start:stop"`; all
                rows where none are named.
        """
        path = path_of(_SESSIONS, session_id, "tensors", hook)
        params = {"format": "safetensors", "rows": _rows_text(rows)}
        data = self._transport.request("GET", path, params=params).content
        header = tensor_files.read_header(lambda offset, length: data[offset : offset + length], len(data))
        if len(header.tensors) != 1:
            raise UnexpectedAnswer(
                f"the service sent {len(header.tensors)} tensors for {hook}, one was asked for"
            )
        entry = next(iter(header.tensors.values()))
        return tensor_files.value_array(entry.dtype, entry.shape, data[entry.start : entry.stop])

    def download_file(self, session_id: str, name: str, target: str | Path) -> Path:
        """Fetch one file of a session to `target`, resumed and checked; see `downloads.fetch`."""
        file = downloads.find(self.session(session_id).files, name)
        return self.download(session_id, file, Path(target))

    def download(self, session_id: str, file: resources.SessionFile, target: Path) -> Path:
        """`download_file` for a caller that has the session's list of files already."""
        return downloads.fetch(
            self._transport, path_of(_SESSIONS, session_id, "files", file.name), file, target
        )

    # the store

    def store_usage(self) -> resources.StoreUsage:
        """What is stored, by whom, and what the quotas leave."""
        return read(resources.StoreUsage, self._transport.request("GET", "/v1/activations/stats"))

    def collect_garbage(
        self, *, dry_run: bool = False, after: str | None = None
    ) -> Iterator[resources.StoreGc]:
        """Clear the store, page after page as the iterator is read; see docs/operating.md.

        Args:
            dry_run: only say what would go.
            after: `next` of a page of an earlier call, to go on there.
        """
        return self._chain("/v1/store/gc", resources.StoreGc, {"dry_run": dry_run}, after)

    def verify_store(
        self, *, sample: float = 1.0, seed: int = 0, after: str | None = None
    ) -> Iterator[resources.StoreVerification]:
        """Compare the store with the index, page after page as the iterator is read.

        Args:
            sample: share of sessions and files whose bytes are read.
            seed: which share.
            after: `next` of a page of an earlier call with the same sample and seed, to go on there.
        """
        params: Params = {"sample": sample, "seed": seed}
        return self._chain("/v1/store/verify", resources.StoreVerification, params, after)

    def _chain(self, path: str, form: type[P], params: Params, after: str | None) -> Iterator[P]:
        while True:
            answer = self._transport.request(
                "POST", path, params={**params, "after": after}, timeout=LONG_SECONDS
            )
            page = read(form, answer)
            yield page
            after = page.next
            if after is None:
                return

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


def _query(wanted: SessionQuery) -> dict[str, Any]:
    return {name: value for name, value in wanted.items() if value is not None}


def _rows_text(rows: Rows | None) -> str | None:
    if rows is None or isinstance(rows, str):
        return rows
    if isinstance(rows, slice):
        if rows.step not in (None, 1):
            raise InvalidRequest("rows with a step cannot be asked for; take every row and step in numpy")
        start, stop = rows.start, rows.stop
    else:
        start, stop = rows
    return f"{'' if start is None else start}:{'' if stop is None else stop}"
