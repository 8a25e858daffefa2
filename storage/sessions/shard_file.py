"""A safetensors file whose rows are written at once and whose header is written last.

The content of the header (the number of files and tokens) is known only when the next rows arrive or the
sample ends. Rows that wait for it would fill the memory, so the file begins with room for the header, and
`seal` fills it.
"""

import hashlib
import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from actograph import tensor_files
from actograph.contract.resources import SessionFile
from storage.artifacts.store import StagedPrefix
from storage.sessions.manifest import TensorPart

TOKEN_IDS = "token_ids"
ROW_POSITIONS = "row_positions"
_METADATA_ROOM = 768  # bytes; a longer header costs a copy of the file
_MANY_TOKENS = 10**9


@dataclass(frozen=True, slots=True)
class HookRows:
    """Consecutive rows of one hook, the first being row `start` of the session's tensor."""

    hook: str
    dtype: str
    shape: tuple[int, int]
    start: int
    data: Sequence[memoryview] = ()  # pieces, in order

    @property
    def stop(self) -> int:
        return self.start + self.shape[0]

    def name(self, *, sharded: bool) -> str:
        return tensor_files.shard_tensor_name(self.hook, self.start, self.stop) if sharded else self.hook


@dataclass(frozen=True, slots=True)
class SealedShard:
    """A complete file and its content."""

    file: SessionFile
    parts: Mapping[str, TensorPart]


class ShardFile:
    """Writes the rows of `blocks` at once; `seal` completes the file. A failure leaves no file."""

    def __init__(self, stage: StagedPrefix, name: str, blocks: Sequence[HookRows]) -> None:
        self._stage, self._name = stage, name
        # Readers that map files need every tensor aligned to its element. So the narrowest dtypes come
        # first, and the rows end at a multiple of 8.
        blocks = sorted(blocks, key=lambda block: tensor_files.itemsize(block.dtype))
        self._data_bytes = sum(len(piece) for block in blocks for piece in block.data)
        entries = [(b.name(sharded=True), b.dtype, b.shape) for b in blocks]
        numbers = [(name, "I64", (_MANY_TOKENS,)) for name in (TOKEN_IDS, ROW_POSITIONS)]
        longest = tensor_files.encode_header([*entries, *numbers])
        self._data_start = self._aligned(len(longest) + _METADATA_ROOM)
        self._file = stage.create(name)
        try:
            self._file.seek(self._data_start)
            for piece in (piece for block in blocks for piece in block.data):
                self._file.write(piece)
            stage.start_writeback(self._file)
        except BaseException:
            self.close()
            stage.remove(name)
            raise
        # without their rows, which belong to the caller
        self._blocks = [HookRows(b.hook, b.dtype, b.shape, b.start) for b in blocks]

    def close(self) -> None:
        """Close the file without its header. A full disk may refuse its last bytes, which nobody reads."""
        with suppress(OSError):
            self._file.close()

    def seal(
        self,
        name: str,
        *,
        sharded: bool,
        metadata: Mapping[str, str],
        numbers: Mapping[str, NDArray[np.int64]],
        empty: Iterable[HookRows],
    ) -> SealedShard:
        """Write `numbers` (by name, such as token ids) after the rows, then the header. Hash and name it.

        Args:
            name: of the complete file.
            sharded: append the range of rows to the name of each tensor.
            empty: tensors without rows.
        """
        blocks = [*empty, *self._blocks]
        entries: list[tuple[str, str, Sequence[int]]] = [
            (b.name(sharded=sharded), b.dtype, b.shape) for b in blocks
        ]
        parts = {
            b.hook: TensorPart(file=name, name=entry[0], start=b.start, stop=b.stop)
            for b, entry in zip(blocks, entries, strict=True)
        }
        for key, values in numbers.items():
            entries.append((key, "I64", values.shape))
            parts[key] = TensorPart(file=name, name=key, start=0, stop=len(values))
        with self._file as file:
            file.seek(self._data_start + self._data_bytes)
            for values in numbers.values():
                file.write(values.astype("<i8").tobytes())
            header = tensor_files.encode_header(entries, metadata, at_least=self._data_start)
            if is_longer := len(header) > self._data_start:
                header = tensor_files.encode_header(entries, metadata, at_least=self._aligned(len(header)))
                with self._stage.create(name) as copy:
                    copy.write(header)
                    file.seek(self._data_start)
                    shutil.copyfileobj(file, copy, 1 << 20)
                    sealed = _sealed(name, copy, parts)
            else:
                file.seek(0)
                file.write(header)
                sealed = _sealed(name, file, parts)
        if is_longer:
            self._stage.remove(self._name)
        else:
            self._stage.rename(self._name, name)
        return sealed

    def _aligned(self, data_start: int) -> int:
        return data_start + -(data_start + self._data_bytes) % tensor_files.ALIGNMENT


def _sealed(name: str, file: BinaryIO, parts: Mapping[str, TensorPart]) -> SealedShard:
    file.seek(0)
    sha256 = hashlib.file_digest(cast(Any, file), "sha256").hexdigest()
    return SealedShard(SessionFile(name=name, bytes=file.tell(), sha256=sha256), parts)
