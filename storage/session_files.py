"""Session files: what was captured for one sample, as safetensors beside a manifest.

A session of one shard is `activations.safetensors`: one tensor per hook, `[rows, width]`, and
`token_ids`. A longer one is split along its rows into `activations-00001-of-0000N.safetensors`, each
tensor named `<hook>[start:stop]` after its rows, with the index JSON that readers of sharded models on
the Hugging Face Hub expect; `token_ids` is in the last shard. `manifest.json` is written last.
"""

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from types import TracebackType
from typing import Any, Self, cast

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Buffer

from actograph import tensor_files
from actograph.contract.errors import ActographError, CaptureFailed
from actograph.contract.resources import SessionFile
from storage.artifacts.store import ArtifactStore
from storage.manifest import FORMAT_VERSION, MANIFEST_NAME, SessionManifest, TensorPart
from storage.session_reader import SessionReader, TensorSlice

__all__ = ["SessionReader", "SessionWriter", "TensorRows", "TensorSlice", "rows_per_shard", "session_prefix"]

TOKEN_IDS = "token_ids"
SINGLE_FILE = "activations.safetensors"
INDEX_FILE = "activations.safetensors.index.json"
_CHUNK = 4 << 20  # written, then hashed while it is still in the processor's cache


@dataclass(frozen=True, slots=True)
class TensorRows:
    """Rows [first_row, first_row + shape[0]) of one hook, as they lie in memory.

    `data` is any C-contiguous buffer of exactly rows x width elements; bfloat16 as its raw 16 bits.
    `first_row` counts the sample's tokens.
    """

    name: str
    dtype: str
    shape: tuple[int, int]
    first_row: int
    data: Buffer | NDArray[Any]


@dataclass(slots=True)
class _Hook:
    """What has come in for one hook so far."""

    dtype: str
    width: int
    first_row: int
    rows: int = 0


def session_prefix(session_id: str) -> str:
    return f"sessions/{session_id}"


def rows_per_shard(bytes_per_row: int, shard_bytes: int) -> int:
    """Rows of all hooks together that make a shard of about `shard_bytes`."""
    return max(1, shard_bytes // max(1, bytes_per_row))


class SessionWriter:
    """Writes one session; nothing of it can be seen before `finish` returns.

    A shard of at least `split_rows` rows (of its longest tensor) is written at once. A smaller one must be
    the last: it is kept by reference and written by `finish`, which must follow before its buffers
    change. Without `split_rows` there is exactly one shard. In every case the bytes go straight from the
    caller's buffers to the file and are hashed on the way.

    Any violation discards the session and raises CaptureFailed with the reason. Safe to call from several
    threads, one call at a time; leaving the `with` block without `finish` discards.
    """

    def __init__(self, store: ArtifactStore, session_id: str, *, split_rows: int | None = None) -> None:
        if split_rows is not None and split_rows < 1:
            raise ValueError(f"split_rows must be at least 1, not {split_rows}")
        self.session_id = session_id
        #: the manifest as stored; set by `finish`
        self.manifest: SessionManifest | None = None
        self._split_rows = split_rows
        self._stage = store.stage(session_prefix(session_id))
        self._lock = threading.Lock()
        self._open = True
        self._hooks: dict[str, _Hook] = {}
        self._parts: dict[str, list[TensorPart]] = {}
        self._held: list[TensorRows] | None = None
        self._shards: list[SessionFile] = []  # in order, under temporary names
        self._final: dict[str, str] = {}  # temporary name -> final name

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.discard()

    def write_shard(self, tensors: Sequence[TensorRows]) -> None:
        """Add the next rows of each hook; a hook without rows in this shard may be left out.

        Raises:
            CaptureFailed: rows that do not follow on, a changed width or dtype, bytes that do not fit the
                shape, a name twice, a shard after the last, or a file that could not be written.
        """
        with self._lock, self._discarding():
            if self._held is not None:
                raise CaptureFailed(
                    f"a shard came after one of fewer than split_rows={self._split_rows} rows, "
                    "which must be the last"
                )
            tensors = list(tensors)
            if not tensors:
                raise CaptureFailed("a shard without tensors")
            names = [t.name for t in tensors]
            if len(set(names)) != len(names):
                raise CaptureFailed("a hook occurs twice in one shard")
            for tensor in tensors:
                self._check_rows(tensor)
            if self._split_rows is not None and max(t.shape[0] for t in tensors) >= self._split_rows:
                self._write(tensors, None, {}, sharded=True)
            else:
                self._held = tensors

    def finish(self, manifest: SessionManifest, token_ids: Sequence[int]) -> list[SessionFile]:
        """Check what came against `manifest`, write the rest and commit.

        `manifest.tensors` states what must have come: per hook shape, dtype and first_row. The places and
        sizes are filled in here; the result is in `self.manifest`.

        Returns: every file of the session, the manifest last.

        Raises:
            CaptureFailed: anything expected is missing or differs, or a file could not be written.
            Conflict: a session of this id is stored already.
        """
        with self._lock, self._discarding():
            ids = self._checked_token_ids(manifest, token_ids)
            self._check_against(manifest)
            sharded = bool(self._shards)
            self._write(self._held or [], ids, _file_metadata(manifest), sharded=sharded)
            self._held = None
            files = self._name_shards()
            tensors = {
                hook: expected.model_copy(
                    update={
                        "parts": self._placed(hook),
                        "nbytes": expected.shape[0]
                        * expected.shape[1]
                        * tensor_files.itemsize(expected.dtype),
                    }
                )
                for hook, expected in manifest.tensors.items()
            }
            (token_part,) = self._placed(TOKEN_IDS)
            if sharded:
                total = sum(t.nbytes for t in tensors.values()) + ids.nbytes
                files.append(self._write_bytes(INDEX_FILE, self._index(manifest, total)))
            self.manifest = manifest.model_copy(
                update={"tensors": tensors, "token_ids": token_part, "files": list(files)}
            )
            files.append(self._write_bytes(MANIFEST_NAME, self.manifest.encode()))
            self._stage.commit(last=[MANIFEST_NAME])
            self._open = False
            return files

    def discard(self) -> None:
        """Remove what was written. Does nothing after `finish`."""
        with self._lock:
            self._abandon()

    def _abandon(self) -> None:
        if self._open:
            self._open = False
            self._held = None
            self._stage.discard()

    @contextmanager
    def _discarding(self) -> Iterator[None]:
        if not self._open:
            raise CaptureFailed(f"the writer of session {self.session_id} has ended")
        try:
            yield
        except OSError as error:
            self._abandon()
            raise CaptureFailed(f"session {self.session_id} could not be written: {error}") from error
        except ActographError as error:
            self._abandon()
            if isinstance(error, CaptureFailed):
                raise CaptureFailed(f"session {self.session_id}: {error.message}") from error
            raise
        except BaseException:
            self._abandon()
            raise

    def _check_rows(self, tensor: TensorRows) -> None:
        name, (rows, width) = tensor.name, tensor.shape
        if not name or name.startswith("__") or name == TOKEN_IDS or name.endswith("]"):
            raise CaptureFailed(f"{name!r} cannot be the name of a stored tensor")
        if tensor.dtype not in tensor_files.NUMPY_DTYPES:
            raise CaptureFailed(f"{name}: dtype {tensor.dtype!r} cannot be stored")
        if rows < 0 or width < 1 or tensor.first_row < 0:
            raise CaptureFailed(f"{name}: shape {tensor.shape} from row {tensor.first_row} is impossible")
        view = _view(tensor.data)
        if not view.c_contiguous:
            raise CaptureFailed(f"{name}: the buffer is not contiguous; copy it first")
        size = rows * width * tensor_files.itemsize(tensor.dtype)
        if view.nbytes != size:
            raise CaptureFailed(
                f"{name}: {view.nbytes} bytes came, {tensor.dtype} {list(tensor.shape)} takes {size}"
            )
        hook = self._hooks.setdefault(name, _Hook(tensor.dtype, width, tensor.first_row))
        if (tensor.dtype, width) != (hook.dtype, hook.width):
            raise CaptureFailed(
                f"{name}: {hook.dtype} of width {hook.width} became {tensor.dtype} of width {width}"
            )
        if tensor.first_row != hook.first_row + hook.rows:
            raise CaptureFailed(
                f"{name}: rows from {tensor.first_row} on came where {hook.first_row + hook.rows} was next"
            )
        hook.rows += rows

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

    def _check_against(self, manifest: SessionManifest) -> None:
        if not manifest.tensors:
            raise CaptureFailed("the manifest names no tensors: nothing was to be captured")
        unexpected = self._hooks.keys() - manifest.tensors.keys()
        if unexpected:
            raise CaptureFailed(f"tensors that the manifest does not name: {', '.join(sorted(unexpected))}")
        ran = manifest.prompt_tokens + max(0, manifest.generated_tokens - 1)
        for name, expected in manifest.tensors.items():
            hook = self._hooks.get(name)
            if hook is None:
                raise CaptureFailed(f"{name}: no rows came")
            if (hook.rows, hook.width) != expected.shape or hook.dtype != expected.dtype:
                raise CaptureFailed(
                    f"{name}: {hook.dtype} {[hook.rows, hook.width]} came, "
                    f"{expected.dtype} {list(expected.shape)} was expected"
                )
            if hook.first_row != expected.first_row:
                raise CaptureFailed(
                    f"{name}: the first row is {hook.first_row}, {expected.first_row} was expected"
                )
            if hook.first_row + hook.rows > ran:
                raise CaptureFailed(
                    f"{name}: row {hook.first_row + hook.rows - 1} of {ran} that the model ran"
                )

    def _write(
        self,
        tensors: Sequence[TensorRows],
        ids: NDArray[np.int64] | None,
        metadata: Mapping[str, str],
        *,
        sharded: bool,
    ) -> None:
        """Write one shard under a temporary name; the widest dtypes first keeps every tensor aligned."""
        file_name = f"shard-{len(self._shards)}"
        entries: list[tuple[str, str, Sequence[int]]] = []
        buffers: list[Buffer | NDArray[Any]] = []
        if ids is not None:
            entries.append((TOKEN_IDS, "I64", ids.shape))
            buffers.append(ids)
            self._parts[TOKEN_IDS] = [TensorPart(file=file_name, name=TOKEN_IDS, start=0, stop=len(ids))]
        for tensor in sorted(tensors, key=lambda t: -tensor_files.itemsize(t.dtype)):
            start = tensor.first_row - self._hooks[tensor.name].first_row
            stop = start + tensor.shape[0]
            name = tensor_files.shard_tensor_name(tensor.name, start, stop) if sharded else tensor.name
            entries.append((name, tensor.dtype, tensor.shape))
            buffers.append(tensor.data)
            part = TensorPart(file=file_name, name=name, start=start, stop=stop)
            self._parts.setdefault(tensor.name, []).append(part)
        about = {"format": "pt", "schema_version": str(FORMAT_VERSION), "session_id": self.session_id}
        header = tensor_files.encode_header(entries, about | dict(metadata))
        self._shards.append(self._write_bytes(file_name, header, *buffers))

    def _write_bytes(self, name: str, *buffers: Buffer | NDArray[Any]) -> SessionFile:
        digest, size = sha256(), 0
        with self._stage.create(name) as file:
            for buffer in buffers:
                view = _view(buffer)
                view = view.cast("B") if view.nbytes else memoryview(b"")
                for offset in range(0, len(view), _CHUNK):
                    piece = view[offset : offset + _CHUNK]
                    file.write(piece)
                    digest.update(piece)
                size += len(view)
        return SessionFile(name=name, bytes=size, sha256=digest.hexdigest())

    def _name_shards(self) -> list[SessionFile]:
        """Rename the shards, now that their number is known."""
        count = len(self._shards)
        named = []
        for index, file in enumerate(self._shards):
            name = SINGLE_FILE if count == 1 else f"activations-{index + 1:05d}-of-{count:05d}.safetensors"
            self._stage.rename(file.name, name)
            named.append(file.model_copy(update={"name": name}))
        self._final = {old.name: new.name for old, new in zip(self._shards, named, strict=True)}
        return named

    def _placed(self, hook: str) -> list[TensorPart]:
        return [p.model_copy(update={"file": self._final[p.file]}) for p in self._parts[hook]]

    def _index(self, manifest: SessionManifest, total_size: int) -> bytes:
        weight_map = {p.name: p.file for hook in self._parts for p in self._placed(hook)}
        index = {"metadata": {"total_size": total_size, **_file_metadata(manifest)}, "weight_map": weight_map}
        return json.dumps(index, indent=1, ensure_ascii=False).encode() + b"\n"


def _view(buffer: Buffer | NDArray[Any]) -> memoryview:
    return memoryview(cast(Buffer, buffer))


def _file_metadata(manifest: SessionManifest) -> dict[str, str]:
    """What a file says about itself when it is found without its manifest."""
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
