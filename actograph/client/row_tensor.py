"""A tensor of a session whose rows are fetched when they are indexed."""

from collections.abc import Callable
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from actograph import tensor_files
from actograph.client import torch_tensors
from actograph.client.answers import path_of
from actograph.client.errors import UnexpectedAnswer
from actograph.client.tensors import IndexedRows, SessionTensors
from actograph.client.transport import Transport
from actograph.contract.resources import TensorInfo
from actograph.tensor_files import Array

#: maximum size of one answer; more rows take several requests
ANSWER_BYTES = 64 << 20


class RowSource(Protocol):
    """Source of a session's rows."""

    def read(self, hook: str, start: int, stop: int, row_bytes: int) -> bytes:
        """Read rows [start, stop) of a tensor as stored."""
        ...


class ServiceRows:
    """Rows over HTTP. The service reads only their bytes, on S3 with one range request."""

    def __init__(self, transport: Transport, session_id: str) -> None:
        self._transport = transport
        self._session_id = session_id

    def read(self, hook: str, start: int, stop: int, row_bytes: int) -> bytes:
        at_once = max(1, ANSWER_BYTES // max(1, row_bytes))
        pieces = []
        for low in range(start, stop, at_once):
            pieces.append(self._answer(hook, low, min(low + at_once, stop), row_bytes))
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _answer(self, hook: str, start: int, stop: int, row_bytes: int) -> bytes:
        path = path_of("/v1/activations/sessions", self._session_id, "tensors", hook)
        params = {"format": "safetensors", "rows": f"{start}:{stop}"}
        data = (self._transport.request("GET", path, params=params)).content
        header = tensor_files.read_header(lambda offset, length: data[offset : offset + length], len(data))
        content = data[header.data_start :]
        if len(header.tensors) != 1 or len(content) != (stop - start) * row_bytes:
            raise UnexpectedAnswer(
                f"the service sent {len(content)} bytes for {stop - start} rows of {hook} ({row_bytes} each)"
            )
        return content


class StoredRows:
    """Rows from the session's files, opened for the first row."""

    def __init__(self, open_files: Callable[[], SessionTensors]) -> None:
        self._open = open_files

    @cached_property
    def _tensors(self) -> SessionTensors:
        return self._open()

    def read(self, hook: str, start: int, stop: int, row_bytes: int) -> bytes:
        return self._read(hook, start, stop)

    def _read(self, hook: str, start: int, stop: int) -> bytes:
        return self._tensors.stored(hook).read_bytes(start, stop)


class RowTensor(IndexedRows):
    """Rows `[rows, width]` of one hook, read when they are indexed.

    Index with an int (one row) or a slice (rows), as in numpy. bfloat16 is converted to float32, which is
    exact; other dtypes are kept.
    """

    def __init__(self, hook: str, info: TensorInfo, source: RowSource) -> None:
        super().__init__(info.dtype, info.shape)
        self.hook = hook
        self.info = info
        self._source = source

    @property
    def row_bytes(self) -> int:
        """Stored size of one row."""
        return int(np.prod(self.shape[1:])) * tensor_files.itemsize(self.stored_dtype)

    def __repr__(self) -> str:
        return f"RowTensor({self.hook}, shape={list(self.shape)}, stored as {self.stored_dtype})"

    def __getitem__(self, index: int | slice) -> Array:
        return self.numpy(index)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError("the rows are in a file: reading them always makes a new array")
        array: Array = self.read(0, len(self))
        return array if dtype is None else array.astype(dtype)

    def numpy(self, index: int | slice = slice(None)) -> Array:
        """Return one row or several, like `tensor[index]`.

        Raises:
            IndexError: the tensor has no such row.
        """
        low, high, then = self.rows_of(index)
        array = self.read(low, high)
        found: Array = array[then]
        return found

    def torch(self, index: int | slice = slice(None)) -> Any:
        """Return rows as a `torch.Tensor` in the stored dtype: bfloat16 stays bfloat16.

        Raises:
            PackageMissing: torch is not installed.
        """
        low, high, then = self.rows_of(index)
        data = self._source.read(self.hook, low, high, self.row_bytes) if high > low else b""
        tensor = torch_tensors.tensor(self.stored_dtype, (high - low, *self.shape[1:]), data)
        if isinstance(then, slice) and then.step is not None and then.step < 0:
            return tensor.flip(0)[:: -then.step]  # torch has no negative steps
        return tensor[then]

    def read(self, start: int, stop: int) -> Array:
        """Read rows [start, stop) as numbers.

        Raises:
            RangeNotSatisfiable: the tensor has no such rows.
        """
        tensor_files.check_rows(start, stop, len(self))
        data = self._source.read(self.hook, start, stop, self.row_bytes) if stop > start else b""
        return tensor_files.value_array(self.stored_dtype, (stop - start, *self.shape[1:]), data)
