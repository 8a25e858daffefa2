# Generated from aio/row_tensor.py by `python actograph/client/unasync.py`: edit that file.
"""A tensor of a session whose rows are fetched when they are indexed."""

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from actograph import tensor_files
from actograph.client import torch_tensors
from actograph.client.answers import path_of
from actograph.client.blocking.runtime import aside, whole
from actograph.client.blocking.transport import Transport
from actograph.client.errors import UnexpectedAnswer
from actograph.client.row_index import IndexedRows, RowPlan, plan, taken
from actograph.client.stored_files import SessionFiles
from actograph.contract.resources import TensorInfo
from actograph.tensor_files import Array

#: maximum size of one answer; more rows take several requests
ANSWER_BYTES = 64 << 20
#: size of the blocks in which iteration reads rows
BLOCK_BYTES = 8 << 20


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

    def __init__(self, open_files: Callable[[], SessionFiles]) -> None:
        self._open = open_files

    @cached_property
    def _files(self) -> SessionFiles:
        return self._open()

    def read(self, hook: str, start: int, stop: int, row_bytes: int) -> bytes:
        return aside(self._read, hook, start, stop)

    def _read(self, hook: str, start: int, stop: int) -> bytes:
        return self._files[hook].read_bytes(start, stop)


class RowTensor(IndexedRows):
    """Rows `[rows, width]` of one hook, read when they are indexed.

    Index as in numpy: a row, a slice, a list of rows, a mask, `...`, or a tuple with columns
    (`tensor[:, :8]`). Whole rows are read, and only those selected; the columns are cut here. Arrays may be
    written to. bfloat16 is converted to float32, which is exact; other dtypes are kept.
    """

    def __init__(self, hook: str, info: TensorInfo, source: RowSource) -> None:
        super().__init__(info.dtype, info.shape)
        self.hook = hook
        self.info = info
        self._source = source

    def __repr__(self) -> str:
        return f"RowTensor({self.hook}, shape={list(self.shape)}, stored as {self.stored_dtype})"

    def __getitem__(self, index: Any) -> Any:
        return self.numpy(index)

    def __iter__(self) -> Iterator[Array]:
        """Yield the rows, read in blocks of 8 MB."""
        at_once = max(1, BLOCK_BYTES // max(1, self.row_bytes))
        block: Any = ()
        for row in range(len(self)):
            if row % at_once == 0:
                block = self.read(row, min(row + at_once, len(self)))
            yield block[row % at_once]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError("the rows are in a file: reading them always makes a new array")
        array: Array = whole(self)
        return array if dtype is None else array.astype(dtype)

    def __dlpack__(self, **options: Any) -> Any:
        """Read all rows at once, for `torch.as_tensor(tensor)`; bfloat16 as float32."""
        return whole(self).__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0  # the CPU

    def numpy(self, index: Any = slice(None)) -> Any:
        """Return `tensor[index]`: an array, or a number for the index of one.

        Raises:
            IndexError: the tensor has no such row or column.
        """
        selected = plan(index, self.shape, self.row_bytes)
        shape, data = self._selected(selected)
        return taken(tensor_files.value_array(self.stored_dtype, shape, data), selected.index)

    def torch(self, index: Any = slice(None)) -> Any:
        """Return rows as a `torch.Tensor` in the stored dtype: bfloat16 stays bfloat16.

        Raises:
            IndexError: the tensor has no such row or column.
            PackageMissing: torch is not installed.
        """
        selected = plan(index, self.shape, self.row_bytes)
        shape, data = self._selected(selected)
        bits = np.asarray(tensor_files.raw_array(self.stored_dtype, shape, data)[selected.index])
        return torch_tensors.tensor(self.stored_dtype, bits.shape, bits.tobytes())

    def read(self, start: int, stop: int) -> Array:
        """Read rows [start, stop) as numbers.

        Raises:
            RangeNotSatisfiable: the tensor has no such rows.
        """
        tensor_files.check_rows(start, stop, len(self))
        shape, data = self._selected(RowPlan([(start, stop)], slice(None)))
        array: Array = taken(tensor_files.value_array(self.stored_dtype, shape, data), slice(None))
        return array

    def _selected(self, selected: RowPlan) -> tuple[tuple[int, ...], bytes]:
        """Return shape and bytes of the rows of a plan."""
        pieces = []
        for low, high in selected.ranges:
            if high > low:
                pieces.append(self._source.read(self.hook, low, high, self.row_bytes))
        return (selected.rows, *self.shape[1:]), pieces[0] if len(pieces) == 1 else b"".join(pieces)
