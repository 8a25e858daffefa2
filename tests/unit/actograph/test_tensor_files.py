"""The safetensors layout: what is written opens elsewhere, what is malformed is refused."""

import io
import json
import math
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import safetensors.torch
import torch
from hypothesis import given
from hypothesis import strategies as st

from actograph import tensor_files
from actograph.contract.errors import RangeNotSatisfiable, StoreDamaged
from actograph.tensor_files import ReadAt
from tests.support.tensor_files import encode_tensors


def reader(data: bytes) -> ReadAt:
    return lambda offset, length: data[offset : offset + length]


def file_of(header: object, data: bytes = b"") -> bytes:
    body = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(body).to_bytes(8, "little") + body + data


def entry(dtype: str = "F32", shape: object = (2, 2), offsets: object = (0, 16)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12).filter(
    lambda name: name != "__metadata__"
)
dtypes = st.sampled_from(sorted(tensor_files.NUMPY_DTYPES))
shapes = st.lists(st.integers(0, 5), max_size=3)
tensors = st.dictionaries(names, st.tuples(dtypes, shapes), max_size=6)


@given(tensors, st.dictionaries(names, st.text(st.characters(exclude_categories=["Cs"]))))
def test_what_is_encoded_is_read_back(fields: dict[str, Any], metadata: dict[str, str]) -> None:
    contents = {
        name: (dtype, shape, bytes(math.prod(shape) * tensor_files.itemsize(dtype)))
        for name, (dtype, shape) in fields.items()
    }
    data = encode_tensors(contents, metadata)
    for size in (None, len(data)):
        header = tensor_files.read_header(reader(data), size)
        assert header.metadata == metadata
        assert {name: (e.dtype, list(e.shape)) for name, e in header.tensors.items()} == fields
        assert all(e.start % tensor_files.itemsize(e.dtype) == 0 for e in header.tensors.values())


@given(st.integers(1, 6), st.integers(0, 4), st.data())
def test_row_range_is_a_numpy_slice(rows: int, width: int, data: st.DataObject) -> None:
    array = np.arange(rows * width, dtype="<i4").reshape(rows, width)
    before = b"\1\2\3\4" * 3
    raw = encode_tensors({"a": ("I32", (3,), before), "t": ("I32", array.shape, array.tobytes())})
    header = tensor_files.read_header(reader(raw))
    start = data.draw(st.integers(0, rows))
    stop = data.draw(st.integers(start, rows))
    offset, length = header.entry("t").byte_range(start, stop)
    assert raw[offset : offset + length] == array[start:stop].tobytes()


@pytest.mark.parametrize(("start", "stop"), [(-1, 2), (0, 4), (2, 1), (4, 4)])
def test_rows_outside_the_tensor_are_refused(start: int, stop: int) -> None:
    raw = encode_tensors({"t": ("F32", (3, 1), bytes(12))})
    with pytest.raises(RangeNotSatisfiable, match=r"0:3"):
        tensor_files.read_header(reader(raw)).entry("t").byte_range(start, stop)


def test_malformed_files_are_refused(subtests: pytest.Subtests) -> None:
    for data, reason in [
        (b"", "too short"),
        (b"\x05\0\0\0\0\0\0", "too short"),
        ((1 << 40).to_bytes(8, "little") + b"{}", "at most"),
        ((50).to_bytes(8, "little") + b"{}", "longer than|ends within"),
        (file_of(b"[1]"), "begin with"),
        (file_of(b" {}"), "begin with"),
        (file_of(b"{"), "not valid JSON"),
        (file_of(b'{"a":"\xff"}'), "not valid JSON"),
        (file_of(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"), "not valid JSON|must give"),
        (file_of(b'{"a":1,"a":2}'), "twice"),
        (file_of({"__metadata__": {"a": 1}}), "__metadata__"),
        (file_of({"__metadata__": "a"}), "__metadata__"),
        (file_of({"t": 5}), "must give"),
        (file_of({"t": {**entry(), "extra": 1}}, bytes(16)), "must give"),
        (file_of({"t": entry(dtype="F31")}, bytes(16)), "unknown tensor dtype"),
        (file_of({"t": {**entry(), "dtype": 3}}, bytes(16)), "dtype is not"),
        (file_of({"t": entry(shape="22")}, bytes(16)), "shape is not"),
        (file_of({"t": entry(shape=[-2, -2])}, bytes(16)), "shape is not"),
        (file_of({"t": entry(shape=[True, 4])}, bytes(16)), "shape is not"),
        (file_of({"t": entry(shape=[2, 2.0])}, bytes(16)), "shape is not"),
        (file_of({"t": entry(offsets=[0])}, bytes(16)), "data_offsets is not"),
        (file_of({"t": entry(offsets=[-16, 0])}, bytes(16)), "data_offsets is not"),
        (file_of({"t": entry(offsets=[16, 0])}, bytes(16)), "which takes 16"),
        (file_of({"t": entry(offsets=[0, 12])}, bytes(12)), "which takes 16"),
        (file_of({"t": entry(offsets=[4, 20])}, bytes(20)), "hole or overlap"),
        (file_of({"t": entry(), "u": entry()}, bytes(16)), "hole or overlap"),
        (file_of({"t": entry(), "u": entry(offsets=[8, 24])}, bytes(24)), "hole or overlap"),
    ]:  # fmt: skip
        for sized in [False, True]:
            with (
                subtests.test(sized=sized, data=data, reason=reason),
                pytest.raises(StoreDamaged, match=reason),
            ):
                tensor_files.read_header(reader(data), len(data) if sized else None)


def test_every_bfloat16_widens_as_torch_widens_it() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    ours = tensor_files.bfloat16_to_float32(bits)
    theirs = torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16).float().numpy()
    assert np.array_equal(ours.view(np.uint32), theirs.view(np.uint32))


def test_files_open_with_the_reference_implementation() -> None:
    rng = np.random.default_rng(0)
    arrays = {
        "a": rng.standard_normal((3, 5)).astype("<f4"),
        "b": rng.standard_normal((2, 3)).astype("<f2"),
        "c": np.arange(7, dtype="<i8"),
        "e": np.zeros((0, 4), "<f4"),
    }
    codes = {"a": "F32", "b": "F16", "c": "I64", "e": "F32"}
    data = encode_tensors(
        {name: (codes[name], a.shape, a.tobytes()) for name, a in arrays.items()}, {"format": "pt"}
    )
    theirs = safetensors.numpy.load(data)
    assert theirs.keys() == arrays.keys()
    assert all(np.array_equal(theirs[name], arrays[name]) for name in arrays)


def test_npy_is_read_by_numpy(subtests: pytest.Subtests) -> None:
    for dtype in ["F32", "F16", "I64", "BOOL", "BF16"]:
        for shape in [(2, 3), (6,), (0, 3)]:
            with subtests.test(shape=shape, dtype=dtype):
                size = int(np.prod(shape))
                raw = np.arange(size).astype(tensor_files.NUMPY_DTYPES[dtype]).tobytes()
                values = tensor_files.value_array(dtype, shape, raw)
                again = np.load(
                    io.BytesIO(tensor_files.npy_header(dtype, shape) + values.tobytes()), allow_pickle=False
                )
                assert (again.dtype, again.shape) == (values.dtype, shape)
                assert np.array_equal(again, values)
