"""Session files: the captured rows of one sample as safetensors, and a manifest.

A session of one shard is `activations.safetensors`: one tensor `[rows, width]` per hook, `token_ids`, and
`row_positions` if rows were selected individually. A longer session is split along its rows into
`activations-00001.safetensors` and so on. Each of its tensors is named `<hook>[start:stop]`, the numbers are
in the last shard, and an index JSON has the form of sharded models on the Hugging Face Hub. `manifest.json`
is written last.
"""

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from types import TracebackType
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

from actograph import tensor_files
from actograph.contract.errors import CaptureFailed, ServiceUnavailable, StorageFull
from actograph.contract.resources import SessionFile
from actograph.dtypes import DTYPES, SCALE_BYTES, scales_of
from storage.artifacts.store import ArtifactStore
from storage.index import disk_reserve
from storage.sessions.manifest import FORMAT_VERSION, MANIFEST_NAME, SessionManifest, StoredTensor, TensorPart
from storage.sessions.reader import SessionReader, TensorSlice
from storage.sessions.shard_file import ROW_POSITIONS, TOKEN_IDS, HookRows, SealedShard, ShardFile

__all__ = ["SessionReader", "SessionWriter", "TensorRows", "TensorSlice", "session_prefix"]

SINGLE_FILE = "activations.safetensors"
INDEX_FILE = "activations.safetensors.index.json"
_UNSEALED = "shard"


@dataclass(frozen=True, slots=True)
class TensorRows:
    """Rows of one hook in memory: those of tokens [first_row, first_row + shape[0]), or of `tokens`.

    `data` is any C-contiguous buffer of exactly rows x width elements, or several whose rows follow on;
    bfloat16 as its raw 16 bits. `scales` are those of rows of F8_E4M3, a float32 each, in buffers likewise.
    `first_row` counts the sample's tokens; `tokens` names the token of every row, ascending.
    """

    name: str
    dtype: str
    shape: tuple[int, int]
    first_row: int
    data: Buffer | NDArray[Any] | tuple[Buffer, ...]
    tokens: tuple[int, ...] | None = None
    scales: tuple[Buffer, ...] = ()


@dataclass(slots=True)
class _Hook:
    """Rows received for one hook."""

    dtype: str
    width: int
    first_row: int
    tokens: list[int] | None  # of every row; None for consecutive rows
    rows: int = 0


def session_prefix(session_id: str) -> str:
    return f"sessions/{session_id}"


class SessionWriter:
    """Writes one session, which becomes visible when `finish` returns.

    Every `write_shard` with rows writes a file at once, from the caller's buffers without a copy. A shard
    that another one follows is uploaded meanwhile. A full disk or an unavailable store is tried again as long
    as the stage `waits`. A violation discards the session and raises CaptureFailed with the reason. Leaving
    the `with` block without `finish` discards it too. Safe to call from any thread.
    """

    def __init__(self, store: ArtifactStore, session_id: str) -> None:
        self.session_id = session_id
        #: the manifest as stored; set by `finish`
        self.manifest: SessionManifest | None = None
        try:
            self._stage = store.stage(session_prefix(session_id))
        except OSError as error:
            raise _unwritten(session_id, error) from error
        self._lock = threading.Lock()
        self._open = True
        self._hooks: dict[str, _Hook] = {}
        self._current: ShardFile | None = None  # written, but for its header
        self._sealed: list[SealedShard] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.discard()

    def write_shard(self, tensors: Sequence[TensorRows]) -> None:
        """Add the next rows of each hook; a hook without rows in this shard may be left out.

        A hook that has no rows in the whole session is named once with shape (0, width).

        Raises:
            CaptureFailed: rows that do not follow on, a changed width or dtype, bytes that do not fit the
                shape, or a name twice.
            ServiceUnavailable: a file could not be written, and the stage waits no longer.
        """
        with self._lock, self._discarding():
            names = [t.name for t in tensors]
            if len(set(names)) != len(names):
                raise CaptureFailed("a hook occurs twice in one shard")
            blocks = []
            for tensor in tensors:
                views = _checked_bytes(tensor)
                start = self._advance(tensor)
                if tensor.shape[0]:
                    blocks.append(HookRows(tensor.name, tensor.dtype, tensor.shape, start, views))
                    if DTYPES[tensor.dtype].has_scales:
                        shape, pieces = (tensor.shape[0], 1), _checked_scales(tensor)
                        blocks.append(HookRows(scales_of(tensor.name), "F32", shape, start, pieces))
            if blocks:
                if self._current is not None:
                    shard = self._seal(self._current, sharded=True)
                    self._stage.start_upload(shard.file.name)
                self._current = self._written(blocks)

    def _written(self, blocks: Sequence[HookRows]) -> ShardFile:
        """A new shard's rows in a file; waits while the disk is full."""
        while True:
            try:
                return ShardFile(self._stage, _UNSEALED, blocks)
            except (OSError, StorageFull) as error:
                reason = _unwritten(self.session_id, error) if isinstance(error, OSError) else error
                if not isinstance(reason, StorageFull) or not self._stage.waits(reason):
                    raise

    def _commit(self) -> None:
        """Commit; waits while the store is unavailable."""
        while True:
            try:
                return self._stage.commit()
            except ServiceUnavailable as reason:
                if not self._stage.waits(reason):
                    raise

    def finish(
        self,
        manifest: SessionManifest,
        token_ids: Sequence[int],
        row_positions: Sequence[int] | None = None,
    ) -> list[SessionFile]:
        """Check the written rows against `manifest`, write the remaining files and commit.

        `manifest.tensors` has the expected shape, dtype and first_row of each hook. The result, with places
        and sizes, is in `self.manifest`. `position_offset` of a tensor points into `row_positions`.

        Returns: every file of the session, the manifest last.

        Raises:
            CaptureFailed: anything expected is missing or differs.
            ServiceUnavailable: a file could not be written or uploaded.
            Conflict: a session of this id is stored already.
        """
        with self._lock, self._discarding():
            ids = self._checked_token_ids(manifest, token_ids)
            self._check_against(manifest, row_positions)
            numbers = {TOKEN_IDS: ids}
            if row_positions is not None:
                numbers[ROW_POSITIONS] = np.array(row_positions, dtype="<i8")
            if self._current is None:  # no hook has any row
                self._current = ShardFile(self._stage, _UNSEALED, [])
            without = {name: hook for name, hook in self._hooks.items() if not hook.rows}
            empty = [HookRows(name, hook.dtype, (0, hook.width), 0) for name, hook in without.items()]
            empty += [
                HookRows(scales_of(name), "F32", (0, 1), 0)
                for name, hook in without.items()
                if DTYPES[hook.dtype].has_scales
            ]
            about = _file_metadata(manifest)
            self._seal(
                self._current, sharded=bool(self._sealed), metadata=about, numbers=numbers, empty=empty
            )
            files = [shard.file for shard in self._sealed]
            parts: dict[str, list[TensorPart]] = {}
            for shard in self._sealed:
                for name, part in shard.parts.items():
                    parts.setdefault(name, []).append(part)
            tensors = {
                hook: t.placed(parts[hook], parts.get(scales_of(hook), []))
                for hook, t in manifest.tensors.items()
            }
            if len(files) > 1:
                total = sum(t.nbytes for t in tensors.values()) + sum(n.nbytes for n in numbers.values())
                weight_map = {p.name: p.file for placed in parts.values() for p in placed}
                index = {"metadata": {"total_size": total, **about}, "weight_map": weight_map}
                text = json.dumps(index, indent=1, ensure_ascii=False) + "\n"
                files.append(self._write_text(INDEX_FILE, text))
            self.manifest = manifest.model_copy(
                update={
                    "tensors": tensors,
                    "token_ids": parts[TOKEN_IDS][0],
                    "row_positions": parts[ROW_POSITIONS][0] if ROW_POSITIONS in numbers else None,
                    "files": list(files),
                }
            )
            files.append(self._write_text(MANIFEST_NAME, self.manifest.encode()))
            self._commit()
            self._open = False
            return files

    def discard(self) -> None:
        """Remove the written files. Does nothing after `finish`."""
        with self._lock:
            self._abandon()

    def _abandon(self) -> None:
        if self._open:
            self._open = False
            if self._current is not None:
                self._current.close()
            self._stage.discard()

    @contextmanager
    def _discarding(self) -> Iterator[None]:
        if not self._open:
            raise CaptureFailed(f"the writer of session {self.session_id} has ended")
        try:
            yield
        except OSError as error:
            self._abandon()
            raise _unwritten(self.session_id, error) from error
        except CaptureFailed as error:
            self._abandon()
            raise CaptureFailed(f"session {self.session_id}: {error.message}") from error
        except BaseException:
            self._abandon()
            raise

    def _advance(self, tensor: TensorRows) -> int:
        """Count new rows. Returns the place of the first one in the session's tensor."""
        name, (rows, width) = tensor.name, tensor.shape
        chosen: list[int] | None = None if tensor.tokens is None else []
        hook = self._hooks.setdefault(name, _Hook(tensor.dtype, width, tensor.first_row, chosen))
        if (tensor.dtype, width) != (hook.dtype, hook.width):
            raise CaptureFailed(
                f"{name}: {hook.dtype} of width {hook.width} became {tensor.dtype} of width {width}"
            )
        start = hook.rows
        if (tensor.tokens is None) != (hook.tokens is None):
            raise CaptureFailed(f"{name}: some rows name their tokens and some do not")
        if tensor.tokens is not None and hook.tokens is not None:
            hook.tokens.extend(tensor.tokens)
        elif tensor.first_row != hook.first_row + start:
            raise CaptureFailed(
                f"{name}: received rows from {tensor.first_row} on, expected {hook.first_row + start}"
            )
        if not start:
            hook.first_row = tensor.first_row  # earlier shards had no rows of it
        hook.rows += rows
        return start

    def _checked_token_ids(self, manifest: SessionManifest, token_ids: Sequence[int]) -> NDArray[np.int64]:
        if manifest.session_id != self.session_id:
            raise CaptureFailed(f"the manifest belongs to session {manifest.session_id}")
        if len(token_ids) != manifest.num_tokens:
            raise CaptureFailed(
                f"{len(token_ids)} token ids for {manifest.prompt_tokens} prompt and "
                f"{manifest.generated_tokens} generated tokens"
            )
        ids = np.array(token_ids, dtype="<i8")
        if (ids < 0).any():
            raise CaptureFailed("a token id is negative")
        return ids

    def _check_against(self, manifest: SessionManifest, row_positions: Sequence[int] | None) -> None:
        if not manifest.tensors:
            raise CaptureFailed("the manifest names no tensors: nothing was to be captured")
        unexpected = self._hooks.keys() - manifest.tensors.keys()
        if unexpected:
            raise CaptureFailed(f"tensors that the manifest does not name: {', '.join(sorted(unexpected))}")
        ran = manifest.prompt_tokens + max(0, manifest.generated_tokens - 1)
        for name, expected in manifest.tensors.items():
            hook = self._hooks.get(name)
            if hook is None:
                raise CaptureFailed(f"{name}: received no rows")
            if (hook.rows, hook.width) != expected.shape or hook.dtype != expected.dtype:
                raise CaptureFailed(
                    f"{name}: received {hook.dtype} {[hook.rows, hook.width]}, "
                    f"expected {expected.dtype} {list(expected.shape)}"
                )
            if expected.summary is not None:
                self._check_summary(name, hook, expected)
                continue
            if hook.rows and hook.first_row != expected.first_row:
                raise CaptureFailed(
                    f"{name}: the first row is {hook.first_row}, expected {expected.first_row}"
                )
            if (hook.tokens is None) != (expected.position_offset is None):
                raise CaptureFailed(f"{name}: the manifest does not say where the tokens of its rows are")
            if expected.position_offset is not None:
                wanted = (row_positions or [])[expected.position_offset :][: hook.rows]
                if list(wanted) != hook.tokens or not all(a < b for a, b in pairwise(wanted)):
                    raise CaptureFailed(f"{name}: the received rows belong to unexpected tokens")
                if wanted and wanted[-1] >= ran:
                    raise CaptureFailed(f"{name}: a row of token {wanted[-1]}, the model ran {ran} tokens")
            elif hook.rows and hook.first_row + hook.rows > ran:
                raise CaptureFailed(
                    f"{name}: rows up to {hook.first_row + hook.rows}, but the model ran {ran} tokens"
                )

    def _check_summary(self, name: str, hook: _Hook, expected: StoredTensor) -> None:
        """Check that a summary has one row, or none if it reduces no tokens."""
        if hook.tokens is not None or expected.over is None or hook.rows != min(expected.over, 1):
            raise CaptureFailed(f"{name}: received {hook.rows} rows for a summary of {expected.over} rows")

    def _seal(
        self,
        current: ShardFile,
        *,
        sharded: bool,
        metadata: Mapping[str, str] | None = None,
        numbers: Mapping[str, NDArray[np.int64]] | None = None,
        empty: Sequence[HookRows] = (),
    ) -> SealedShard:
        """Complete the current shard, now that it is known whether there are several."""
        name = f"activations-{len(self._sealed) + 1:05d}.safetensors" if sharded else SINGLE_FILE
        about = {"format": "pt", "schema_version": str(FORMAT_VERSION), "session_id": self.session_id}
        about |= metadata or {}
        sealed = current.seal(name, sharded=sharded, metadata=about, numbers=numbers or {}, empty=empty)
        self._current = None
        self._sealed.append(sealed)
        return sealed

    def _write_text(self, name: str, text: str) -> SessionFile:
        data = text.encode()
        with self._stage.create(name) as file:
            file.write(data)
        return SessionFile(name=name, bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


def _unwritten(session_id: str, error: OSError) -> ServiceUnavailable:
    """The error of a store that cannot write. The sample can run again."""
    kind = StorageFull if error.errno in disk_reserve.FULL else ServiceUnavailable
    return kind(f"session {session_id} could not be written: {error}")


def _checked_scales(tensor: TensorRows) -> list[memoryview]:
    """The bytes of the scales of a tensor's rows, piece by piece."""
    views = [memoryview(piece) for piece in tensor.scales]
    if sum(view.nbytes for view in views) != SCALE_BYTES * tensor.shape[0]:
        raise CaptureFailed(f"{tensor.name}: {tensor.shape[0]} rows need a scale each")
    return [view.cast("B") for view in views if view.nbytes]


def _checked_bytes(tensor: TensorRows) -> list[memoryview]:
    """Check a tensor and return its bytes, piece by piece."""
    name, (rows, width) = tensor.name, tensor.shape
    if not name or name.startswith("__") or name in (TOKEN_IDS, ROW_POSITIONS) or name.endswith("]"):
        raise CaptureFailed(f"{name!r} cannot be the name of a stored tensor")
    if tensor.dtype not in tensor_files.NUMPY_DTYPES:
        raise CaptureFailed(f"{name}: dtype {tensor.dtype!r} cannot be stored")
    if tensor.tokens is not None and (
        len(tensor.tokens) != rows or tensor.tokens[:1] not in ((), (tensor.first_row,))
    ):
        raise CaptureFailed(
            f"{name}: {rows} rows from {tensor.first_row} on name {len(tensor.tokens)} tokens"
        )
    if rows < 0 or width < 1 or tensor.first_row < 0:
        raise CaptureFailed(f"{name}: shape {tensor.shape} from row {tensor.first_row} is impossible")
    pieces = tensor.data if isinstance(tensor.data, tuple) else (cast(Buffer, tensor.data),)
    views = [memoryview(piece) for piece in pieces]
    if not all(view.c_contiguous for view in views):
        raise CaptureFailed(f"{name}: the buffer is not contiguous; copy it first")
    size, received = rows * width * tensor_files.itemsize(tensor.dtype), sum(view.nbytes for view in views)
    if received != size:
        raise CaptureFailed(
            f"{name}: received {received} bytes, {tensor.dtype} {list(tensor.shape)} takes {size}"
        )
    return [view.cast("B") for view in views if view.nbytes]


def _file_metadata(manifest: SessionManifest) -> dict[str, str]:
    """Metadata of a file, readable without its manifest."""
    known: dict[str, str | None] = {
        "job_id": manifest.job_id,
        "sample_id": manifest.sample_id,
        "model": manifest.model,
        "model_revision": manifest.revision,
        "dtype": manifest.dtype,
        "capture_sha256": manifest.capture_sha256,
        "prompt_tokens": str(manifest.prompt_tokens),
        "generated_tokens": str(manifest.generated_tokens),
    }
    return {name: value for name, value in known.items() if value is not None}
