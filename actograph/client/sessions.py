"""`client.sessions`, and the session objects that it returns."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from actograph import tensor_files
from actograph.client.errors import UnexpectedAnswer
from actograph.client.pulls import fetch, plain_name
from actograph.client.tensors import LazyTensor
from actograph.client.transport import LONG_SECONDS, PAGE_SIZE, Handle, Listing, Resource, path_of
from actograph.contract import base, resources
from actograph.contract.errors import NotFound
from actograph.contract.hooks import canonical

Order = Literal["asc", "desc"]
#: maximum size of one answer; more rows take several requests
ANSWER_BYTES = 64 << 20
_INDEX = re.compile(r"\[(\d+)\]")
_SHOWN = 8


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
    pinned: bool | None
    created_after: float | None
    created_before: float | None
    expires_before: float | None


def stored_name(name: str, hooks: Iterable[str]) -> str | None:
    """Return the entry of `hooks` for a hook point, alias or module location; None if there is none."""
    known = set(hooks)
    location = _INDEX.sub(r".\1", name).removesuffix(".0")
    return next((found for found in (name, canonical(name), location) if found in known), None)


class SessionHandle(Handle, resources.Session):
    """A session as the service last reported it. Its tensors are read when they are indexed."""

    def __getitem__(self, hook: str) -> LazyTensor:
        """Return the tensor of a hook point or alias.

        Raises:
            NotFound: the session has no such tensor.
        """
        name = stored_name(hook, self.hooks)
        if name is None:
            known = list(self.hooks)
            more = f" and {len(known) - _SHOWN} more" if len(known) > _SHOWN else ""
            listed = ", ".join(known[:_SHOWN]) or "none"
            raise NotFound(f"no tensor {hook} is stored; the session has {listed}{more}")
        info = self.hooks[name]
        return self._tensor(name, info.dtype, info.shape)

    def __contains__(self, hook: str) -> bool:
        return stored_name(hook, self.hooks) is not None

    def token_ids(self) -> NDArray[np.int64]:
        """Return the `[P + G]` token ids of prompt and generation."""
        return self._tensor("token_ids", "I64", [self.prompt_tokens + self.generated_tokens])[:]

    def tokens_of(self, hook: str) -> NDArray[np.int64]:
        """Return the token index of every row of a tensor, ascending; for a summary, of every row it sums."""
        info = self.hooks[self[hook].hook]
        count = info.shape[0] if info.over is None else info.over
        if info.position_offset is None:
            return np.arange(info.first_row, info.first_row + count)
        stop = info.position_offset + count
        return self._tensor("row_positions", "I64", [stop])[info.position_offset : stop]

    def download(self, folder: str | Path) -> Path:
        """Download every file to `<folder>/<id>`, verified by sha256. Returns that folder.

        Verified files that are there already are not downloaded again.
        """
        target = Path(folder) / plain_name(self.id)
        target.mkdir(parents=True, exist_ok=True)
        for file in self.files:
            self._client.sessions.download(self.id, file, target)
        return target

    def _tensor(self, name: str, dtype: str, shape: Sequence[int]) -> LazyTensor:
        row_bytes = math.prod(shape[1:]) * tensor_files.itemsize(dtype)
        return LazyTensor(name, dtype, shape, partial(self._client.sessions.read_rows, self, name, row_bytes))


class Sessions(Resource, path="/v1/activations/sessions"):
    """List, read, change and delete sessions."""

    def get(self, session_id: str) -> SessionHandle:
        """Return one session: its hooks, shapes and files."""
        return self._call(SessionHandle, "GET", session_id)

    def list(
        self, *, order: Order = "desc", page_size: int = PAGE_SIZE, **filters: Unpack[SessionFilters]
    ) -> Listing[SessionHandle]:
        """List matching sessions, newest first. Pages are fetched as the list is read."""
        return self._items(SessionHandle, **filters, order=order, limit=page_size)

    def stats(self, **filters: Unpack[SessionFilters]) -> resources.SessionStats:
        """Return the number and size of matching sessions."""
        return self._call(resources.SessionStats, "GET", "stats", params=filters)

    def update(self, session_id: str, **change: Any) -> SessionHandle:
        """Change a session's `expires_at` (Unix seconds; None keeps it forever), `pinned` or `tags`."""
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
        params = {**filters, "all": everything or None, "dry_run": dry_run}
        options: Any = {"params": params, "json": dict(change), "timeout": LONG_SECONDS}
        return self._call(resources.SessionChange, "PATCH", **options)

    def score(self, scores: Sequence[Mapping[str, Any] | resources.SessionScores]) -> int:
        """Store scores by another program, and verdicts. Returns the number of sessions.

        Args:
            scores: for each session `session_id`, `scores` (name -> `value`, and perhaps the judged `answer`)
                and perhaps `correct`.

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
        params = {**filters, "all": everything or None, "dry_run": dry_run, "include_pinned": include_pinned}
        return self._call(resources.SessionDeletion, "DELETE", params=params, timeout=LONG_SECONDS)

    def download(self, session_id: str, file: resources.SessionFile, folder: Path) -> Path:
        """Download a file of a session to an existing folder, unless it is there with the right sha256.

        Raises:
            DownloadDamaged: the download has another checksum; nothing is left on disk.
        """
        return fetch(self._transport, path_of(self._path, session_id, "files", file.name), file, folder)

    def read_rows(self, session: SessionHandle, name: str, row_bytes: int, start: int, stop: int) -> bytes:
        """Read rows of a tensor as stored."""
        path = path_of(self._path, session.id, "tensors", name)
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
