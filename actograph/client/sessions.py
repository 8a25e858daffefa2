"""`client.sessions`, and the session objects that it returns."""

import math
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray
from pydantic import PrivateAttr
from typing_extensions import override

from actograph import tensor_files
from actograph.client.downloads import fetch, plain_name
from actograph.client.errors import UnexpectedAnswer
from actograph.client.keywords import require_known
from actograph.client.stored_session import Manifest, StoredSession
from actograph.client.tensors import ROW_POSITIONS, LazyTensor
from actograph.client.transport import LONG_SECONDS, PAGE_SIZE, APIResource, Handle, Listing, path_of
from actograph.contract import base, resources
from actograph.contract.errors import NotFound
from actograph.contract.specs import SessionUpdate
from actograph.dtypes import read_as
from actograph.short_texts import shorten, size

Order = Literal["asc", "desc"]
#: maximum size of one answer; more rows take several requests
ANSWER_BYTES = 64 << 20


class SessionFilters(TypedDict, total=False):
    """Filters of sessions. None means no filter. Times are Unix seconds."""

    id_prefix: str | None
    job_id: str | None
    model: str | None
    condition: str | None
    sample_index: int | None
    correct: bool | None
    tag: str | None
    owner: str | None
    source_session: str | None
    pinned: bool | None
    analyses: bool | None
    created_after: float | None
    created_before: float | None
    expires_before: float | None


class SessionHandle(StoredSession, Handle, resources.Session):
    """A session as the service last reported it. Its tensors are read when they are indexed."""

    _known: Manifest | None = PrivateAttr(None)

    @override
    def _stored(self) -> Mapping[str, resources.TensorInfo]:
        return self.hooks

    @override
    def _read(self, name: str) -> LazyTensor:
        sessions: Sessions = self._client.sessions
        if name in self.hooks:
            info = self.hooks[name]
            return sessions.tensor(self.id, name, info.dtype, info.shape)
        count = self.prompt_tokens + self.generated_tokens
        if name == ROW_POSITIONS:  # their number is not in the index
            count = max(
                (one.position_offset or 0) + (one.over or one.shape[0]) for one in self.hooks.values()
            )
        return sessions.tensor(self.id, name, "I64", (count,))

    @override
    def _manifest(self) -> Manifest:
        if self._known is None:
            self._known = self._client.sessions.manifest(self.id)
        return self._known

    @override
    def _direction(self, name: str) -> tuple[str, NDArray[np.float64]]:
        found = self._client.vectors.get(name)
        return found.hook, np.asarray(found.vector, np.float64)

    @property
    @override
    def facts(self) -> str:
        """Id, model, sample, verdict and size in one line."""
        verdict = None if self.correct is None else "right" if self.correct else "wrong"
        sample = f"sample {self.sample_index}"
        facts = [
            f"Session {shorten(self.id)}",
            self.model,
            f"{sample}, {self.condition}" if self.condition else sample,
            f"{self.prompt_tokens} + {self.generated_tokens} tokens",
            verdict,
            f"{len(self.hooks)} tensors, {size(self.bytes)}",
        ]
        return " · ".join(fact for fact in facts if fact)

    def named(self, files: str) -> list[resources.SessionFile]:
        """Files whose names match a pattern. Raises NotFound if none does."""
        chosen = [file for file in self.files if fnmatchcase(file.name, files)]
        if not chosen:
            names = ", ".join(file.name for file in self.files)
            raise NotFound(f"session {self.id} has no file {files!r}; it has {names}")
        return chosen

    def download(self, folder: str | Path, files: str = "*") -> Path:
        """Download files to `<folder>/<id>`, verified by sha256. Returns that folder.

        Verified files that are there already are not downloaded again.

        Args:
            files: a pattern of their names, such as `*.png`. Default: all.

        Raises:
            NotFound: the session has no such file.
        """
        chosen = self.named(files)
        target = Path(folder) / plain_name(self.id)
        target.mkdir(parents=True, exist_ok=True)
        for file in chosen:
            self._client.sessions.download(self.id, file, target)
        return target


class Sessions(APIResource, path="/v1/activations/sessions"):
    """List, read, change and delete sessions."""

    def get(self, session_id: str) -> SessionHandle:
        """Return one session: its hooks, shapes and files."""
        return self._call(SessionHandle, "GET", session_id)

    def list(
        self, *, order: Order = "desc", page_size: int = PAGE_SIZE, **filters: Unpack[SessionFilters]
    ) -> Listing[SessionHandle]:
        """List matching sessions, newest first. Pages are fetched as the list is read."""
        require_known(self.list, filters, SessionFilters)
        return self._items(SessionHandle, **filters, order=order, limit=page_size)

    def stats(self, **filters: Unpack[SessionFilters]) -> resources.SessionStats:
        """Return the number and size of matching sessions."""
        require_known(self.stats, filters, SessionFilters)
        return self._call(resources.SessionStats, "GET", "stats", params=filters)

    def update(self, session_id: str, **change: Any) -> SessionHandle:
        """Change a session's `expires_at` (Unix seconds; None keeps it forever), `pinned` or `tags`."""
        require_known(self.update, change, SessionUpdate)
        return self._call(SessionHandle, "PATCH", session_id, json=change)

    def update_many(
        self,
        change: Mapping[str, Any],
        *,
        everything: bool = False,
        dry_run: bool = False,
        **filters: Unpack[SessionFilters],
    ) -> resources.SessionChange:
        """Change every matching session, or count them. Without a filter, `everything` is required."""
        require_known(self.update_many, filters, SessionFilters)
        params = {**filters, "all": everything or None, "dry_run": dry_run}
        options: Any = {"params": params, "json": dict(change), "timeout": LONG_SECONDS}
        return self._call(resources.SessionChange, "PATCH", **options)

    def score(self, scores: Sequence[Mapping[str, Any] | resources.SessionScores]) -> int:
        """Store scores by another program, and verdicts. Returns the number of sessions.

        Args:
            scores: for each session `session_id`, `scores` (name -> a number, or its `value` and the judged
                `answer`) and perhaps `correct`.

        Raises:
            ApiError: 404 if a session does not exist, 422 if it is an evaluation's. Of 1,000 sessions, which
                one request has at most, none is changed then.
        """
        most = resources.MAX_SCORED_SESSIONS
        for start in range(0, len(scores), most):
            given = [
                one if isinstance(one, Mapping) else one.model_dump() for one in scores[start : start + most]
            ]
            self._call(resources.SessionChange, "POST", "scores", json={"sessions": given})
        return len(scores)

    def delete(self, session_id: str) -> base.Deleted:
        """Delete a session with its files."""
        return self._call(base.Deleted, "DELETE", session_id)

    def delete_many(
        self,
        *,
        everything: bool = False,
        dry_run: bool = False,
        include_pinned: bool = False,
        **filters: Unpack[SessionFilters],
    ) -> resources.SessionDeletion:
        """Delete every matching session with its files, except pinned ones, or count them.

        Without a filter, `everything` is required.
        """
        require_known(self.delete_many, filters, SessionFilters)
        params = {**filters, "all": everything or None, "dry_run": dry_run, "include_pinned": include_pinned}
        return self._call(resources.SessionDeletion, "DELETE", params=params, timeout=LONG_SECONDS)

    def download(self, session_id: str, file: resources.SessionFile, folder: Path) -> Path:
        """Download a file of a session to an existing folder, unless it is there with the right sha256.

        Raises:
            DownloadDamaged: the download has another checksum; nothing is left on disk.
        """
        return fetch(self._transport, path_of(self._path, session_id, "files", file.name), file, folder)

    def manifest(self, session_id: str) -> Manifest:
        """Return the segments and the texts of a session's tokens."""
        return self._call(Manifest, "GET", session_id, "manifest")

    def tensor(self, session_id: str, name: str, dtype: str, shape: Sequence[int]) -> LazyTensor:
        """Return a tensor of a session by its stored name, dtype and shape. Nothing is requested yet."""
        row_bytes = math.prod(shape[1:]) * tensor_files.itemsize(read_as(dtype))
        # it keeps no session, so a list of many tensors stays small
        return LazyTensor(name, dtype, shape, partial(self._read_rows, session_id, name, row_bytes))

    def _read_rows(self, session_id: str, name: str, row_bytes: int, start: int, stop: int) -> bytes:
        """Read rows of a tensor as the service sends them."""
        path = path_of(self._path, session_id, "tensors", name)
        at_once = max(1, ANSWER_BYTES // max(1, row_bytes))
        pieces = []
        for low in range(start, stop, at_once):
            high = min(low + at_once, stop)
            params = {"format": "safetensors", "rows": f"{low}:{high}"}
            data = self._transport.request("GET", path, params=params).content
            header = tensor_files.read_header(lambda at, n, data=data: data[at : at + n], len(data))  # type: ignore[misc]
            content = data[header.data_start :]
            if len(header.tensors) != 1 or len(content) != (high - low) * row_bytes:
                raise UnexpectedAnswer(
                    f"the service sent {len(content)} bytes for {high - low} rows of {name}, {row_bytes} each"
                )
            pieces.append(content)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)
