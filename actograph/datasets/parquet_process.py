"""Reads Parquet rows in a child process with limits of memory and time.

A few bytes of Parquet can stand for gigabytes, and the sizes in a file may be wrong. If the child runs out of
memory or crashes, only this reading fails. The child does not open the file: it asks its parent for ranges,
which the parent verifies, and sends rows back as JSON.

    parent -> child    one line of JSON, the request; then the bytes of each range
    child -> parent    frames: a letter and a length; R a range, J rows, E an error, D the end
"""

import json
import os
import resource
import struct
import subprocess
import sys
import threading
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from io import SEEK_CUR, SEEK_END, SEEK_SET, BufferedReader, RawIOBase
from typing import Any, BinaryIO, Protocol

from actograph import limited_process
from actograph.contract.errors import InvalidDataset, ServiceBusy
from actograph.datasets import memory_budget
from actograph.datasets.dataset_lines import MAX_LINE_BYTES, MAX_ROW_VALUES, json_cost
from actograph.datasets.parquet_rows import ParquetRecords

#: data of the child
MEMORY_BYTES = 320 << 20
CPU_SECONDS = 120
#: children per process, and the longest wait for one
PROCESSES = 1
WAIT_SECONDS = 3.0
MAX_FRAME_BYTES = 8 << 20
_BATCH_BYTES = 256 << 10
_BLOCK = 1 << 20
_FRAME = struct.Struct("<cQ")
_RANGE = struct.Struct("<QQ")
#: marks a value that JSON lacks, such as a time
_OTHER = "\0other"
#: marks a row that cannot be sent, with the reason
_BAD = "\0bad"

_turns = threading.BoundedSemaphore(PROCESSES)


class Readable(Protocol):
    """A file that can be read by byte ranges."""

    @property
    def size(self) -> int: ...

    def read(self, start: int, length: int, /) -> bytes: ...


class OtherValue:
    """A value of a Parquet file that JSON lacks; templates see it as text."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __str__(self) -> str:
        return self._text


class ParquetProcess:
    """Rows of a Parquet file as records, read once."""

    def __init__(
        self, file: Readable, columns: Collection[str] | None, required: Collection[str] = ()
    ) -> None:
        """See `ParquetRecords`."""
        self._file = file
        self._columns = columns
        self._required = required

    def __iter__(self) -> Iterator[object]:
        return self.from_row(0)

    def from_row(self, start: int, /) -> Iterator[object]:
        """The rows from this one on.

        Raises:
            InvalidDataset: not Parquet, damaged, without a required column, or above the limits.
            ServiceBusy: other Parquet files are being read.
            OSError, ActographError: the file cannot be read.
        """
        if not _turns.acquire(timeout=WAIT_SECONDS):
            raise ServiceBusy("another Parquet file is being read here; send the request again in a moment")
        try:
            # this allocator gives memory back, and reserves no more than it uses
            child = limited_process.start(
                "actograph.datasets.parquet_process",
                ARROW_DEFAULT_MEMORY_POOL="system",
                OMP_NUM_THREADS="1",
            )
            try:
                yield from self._converse(child, start)
            finally:
                child.kill()
                with suppress(BrokenPipeError):
                    child.communicate()
        finally:
            _turns.release()

    def _converse(self, child: subprocess.Popen[bytes], start: int) -> Iterator[object]:
        assert child.stdin is not None
        assert child.stdout is not None
        request = {
            "size": self._file.size,
            "start": start,
            "columns": None if self._columns is None else sorted(self._columns),
            "required": sorted(self._required),
            "memory": MEMORY_BYTES,
            "seconds": CPU_SECONDS,
        }
        with suppress(BrokenPipeError):
            child.stdin.write(json.dumps(request).encode() + b"\n")
            child.stdin.flush()
        while True:
            kind, body = _read_frame(child.stdout)
            if kind == b"R":
                data = self._file.read(*_RANGE.unpack(body))
                with suppress(BrokenPipeError):
                    child.stdin.write(data)
                    child.stdin.flush()
            elif kind == b"J":
                hook = _restored if b"\\u0000" in body else None
                with memory_budget.DATASETS.hold(json_cost(body).bytes, "a row of the dataset"):
                    yield from json.loads(body, object_hook=hook)
            elif kind == b"E":
                raise InvalidDataset(body.decode(), param="dataset")
            elif kind == b"D":
                return
            else:
                raise InvalidDataset(
                    f"the Parquet file cannot be read with {MEMORY_BYTES >> 20} MiB of memory in "
                    f"{CPU_SECONDS} s; write it in smaller row groups and pages, or send the rows as JSONL",
                    param="dataset",
                )


def _read_frame(stream: Any) -> tuple[bytes, bytes]:
    """Kind and body of the next frame; an empty kind if the child has ended or the frame is invalid."""
    head = stream.read(_FRAME.size)
    if len(head) < _FRAME.size:
        return b"", b""
    kind, length = _FRAME.unpack(head)
    if length > MAX_FRAME_BYTES:
        return b"", b""
    body = stream.read(length)
    return (kind, body) if len(body) == length else (b"", b"")


def _restored(value: dict[str, Any]) -> Any:
    if value.keys() == {_BAD}:
        return InvalidDataset(value[_BAD])
    return OtherValue(value[_OTHER]) if value.keys() == {_OTHER} else value


# --- the child


class _ParentFile(RawIOBase):
    """The file, read through the parent process."""

    def __init__(self, source: BinaryIO, target: BinaryIO, size: int) -> None:
        self._source, self._target, self._size = source, target, size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = SEEK_SET) -> int:
        start = {SEEK_SET: 0, SEEK_CUR: self._at, SEEK_END: self._size}[whence]
        self._at = max(0, start + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any, /) -> int:
        count = max(0, min(len(buffer), self._size - self._at))
        if count:
            _send(self._target, b"R", _RANGE.pack(self._at, count))
            data = self._source.read(count)
            if len(data) < count:
                os._exit(1)  # the parent has ended
            buffer[:count] = data
            self._at += count
        return count


def _send(target: BinaryIO, kind: bytes, body: bytes = b"") -> None:
    target.write(_FRAME.pack(kind, len(body)) + body)
    target.flush()


def _other(value: object) -> dict[str, str]:
    return {_OTHER: str(value)}


def _encoded(record: object) -> str:
    """The row as JSON, or the reason why it cannot be sent."""
    text = json.dumps(record, default=_other)
    if len(text) > MAX_LINE_BYTES:
        return json.dumps({_BAD: f"the row is longer than {MAX_LINE_BYTES} bytes"})
    if json_cost(text.encode()).values > MAX_ROW_VALUES:
        return json.dumps({_BAD: f"the row holds more than {MAX_ROW_VALUES} values"})
    return text


def _send_rows(rows: Sequence[str], target: BinaryIO) -> None:
    _send(target, b"J", f"[{','.join(rows)}]".encode())


def main() -> None:
    source, target = sys.stdin.buffer, sys.stdout.buffer
    request = json.loads(source.readline())
    import pyarrow

    pyarrow.set_cpu_count(1)
    os.nice(5)
    limited_process.limit_memory(request["memory"])
    resource.setrlimit(resource.RLIMIT_CPU, (request["seconds"], request["seconds"]))
    file = BufferedReader(_ParentFile(source, target, request["size"]), _BLOCK)
    try:
        records = ParquetRecords(
            file,
            request["columns"],
            required=request["required"],
            file_bytes=request["size"],
        )
        rows: list[str] = []
        held = 0
        for record in records.from_row(request["start"]):
            rows.append(_encoded(record))
            held += len(rows[-1])
            if held >= _BATCH_BYTES:
                _send_rows(rows, target)
                rows, held = [], 0
        _send_rows(rows, target)
        _send(target, b"D")
    except InvalidDataset as error:
        _send(target, b"E", error.message.encode("utf-8", "replace"))


if __name__ == "__main__":
    main()
