"""Rows of a folder's tensors, read without loading the files."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from actograph.client.stored_session import SessionTensors, open_folder
from actograph.contract.errors import NotFound, RangeNotSatisfiable, StoreDamaged


@pytest.fixture
def values() -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(10, 6)


@pytest.fixture
def single(tmp_path: Path, values: torch.Tensor) -> Path:
    safetensors.torch.save_file(
        {"x.0": values, "y.0": values.bfloat16(), "token_ids": torch.arange(11)},
        tmp_path / "activations.safetensors",
        {"model": "m"},
    )
    return tmp_path


@pytest.fixture
def sharded(tmp_path: Path, values: torch.Tensor) -> Path:
    cuts = [(0, 4), (4, 5), (5, 10)]
    for number, (start, stop) in enumerate(cuts):
        tensors = {f"x.0[{start}:{stop}]": values[start:stop].contiguous()}
        if stop == 10:
            tensors["token_ids"] = torch.arange(11)
        safetensors.torch.save_file(tensors, tmp_path / f"activations-{number}.safetensors")
    return tmp_path


@pytest.mark.parametrize("folder", ["single", "sharded"])
def test_indexing_is_numpy_indexing(
    folder: str, values: torch.Tensor, request: pytest.FixtureRequest, subtests: pytest.Subtests
) -> None:
    tensor = open_folder(request.getfixturevalue(folder))["x.0"]
    mask = np.isin(np.arange(10), [2, 5])
    indices: list[Any] = [
        0, -1, 4, 9, np.int64(3), slice(None), slice(3, 7), slice(-3, None), slice(8, 2),
        slice(None, None, 3), slice(None, None, -1), slice(9, 2, -2), slice(0, 99), range(2, 4),
        (slice(None), slice(None, 3)), [1, 5], [5, 1, -1], [[1, 2], [3, 4]], mask, ..., (..., 0), (3, 4),
        (slice(2, 4), [0, 5]), ([1, 2], [3, 4]), (mask, 2), (slice(None, None, -1), [1, 2]), None,
        (None, 2), values.numpy() > 0, (), [], (2, slice(1, 3)), (slice(3, 5), ..., 1),
    ]  # fmt: skip
    for index in indices:
        with subtests.test(index=index):
            got, expected = tensor[index], values.numpy()[index]
            assert type(got) is type(expected)
            assert np.shape(got) == np.shape(expected)
            assert np.array_equal(got, expected)
            assert np.array_equal(tensor.torch(index).numpy(), expected)
            if isinstance(got, np.ndarray):
                got[...] = 0  # a copy of one's own
                assert np.array_equal(tensor[index], expected)


def test_what_a_tensor_says_about_itself(single: Path, values: torch.Tensor) -> None:
    session = open_folder(single)
    assert set(session) == {"x.0", "y.0"}
    assert session.token_ids.tolist() == list(range(11))
    tensor = session["y.0"]
    assert (tensor.shape, tensor.stored_dtype) == ((10, 6), "BF16")
    assert tensor.dtype == np.dtype(np.float32)
    assert len(tensor) == 10
    assert np.array_equal(np.asarray(tensor), values.bfloat16().float().numpy())
    assert [row.tolist() for row in tensor] == np.asarray(tensor).tolist()
    assert torch.equal(tensor.torch([1, 5]), values.bfloat16()[[1, 5]])


def test_names_of_a_tensor_that_only_the_manifest_knows(single: Path) -> None:
    known = {"locations": {"x.0": "model.layers.0.mlp.output"}, "resolved_hooks": {"first": "x.0"}}
    (single / "manifest.json").write_text(json.dumps(known))
    session = open_folder(single)
    for name in ("model.layers[0].mlp.output", "model.layers.0.mlp.output[0]", "first"):
        assert session[name].hook == "x.0"
    assert "model.layers.1.mlp.output" not in session
    with pytest.raises(NotFound, match=r"no tensor second is stored; stored: x\.0, y\.0"):
        session["second"]


def test_a_row_that_is_not_there(single: Path) -> None:
    tensor = open_folder(single)["x.0"]
    for index in (10, -11, [10], np.zeros(9, bool), (0, 0, 0), "a", 1.5):
        with pytest.raises(IndexError):
            tensor[index]
    with pytest.raises(RangeNotSatisfiable):
        tensor.read(5, 11)


def test_only_the_bytes_of_the_rows_are_read(single: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actograph.client.tensors.GAP_BYTES", 0)
    data = (single / "activations.safetensors").read_bytes()
    reads: list[int] = []

    def read_at(offset: int, length: int) -> bytes:
        reads.append(length)
        return data[offset : offset + length]

    tensor = SessionTensors([(read_at, len(data))])["x.0"]
    for index, read in [(slice(2, 5), [3]), ([1, 8], [1, 1]), ((slice(3, 4), 0), [1]), ([], [])]:
        reads.clear()
        _ = tensor[index]
        assert reads == [rows * 6 * 4 for rows in read]
    monkeypatch.setattr("actograph.client.tensors.GAP_BYTES", 3 * 24)
    reads.clear()
    _ = tensor[[1, 4, 9]]
    assert reads == [4 * 24, 24], "rows between near ones are read along"
    monkeypatch.setattr("actograph.client.tensors.BLOCK_BYTES", 4 * 24)
    reads.clear()
    assert len(list(tensor)) == 10
    assert reads == [4 * 24, 4 * 24, 2 * 24], "blocks, and not a row a read"


def test_a_missing_shard_is_named(sharded: Path) -> None:
    (sharded / "activations-1.safetensors").unlink()
    with pytest.raises(StoreDamaged, match=r"x\.0: rows 4:5 are missing"):
        open_folder(sharded)


def test_shards_that_overlap_or_differ_are_refused(sharded: Path) -> None:
    extra = sharded / "activations-9.safetensors"
    safetensors.torch.save_file({"x.0[4:6]": torch.zeros(2, 6)}, extra)
    with pytest.raises(StoreDamaged, match="twice"):
        open_folder(sharded)
    safetensors.torch.save_file({"x.0[10:12]": torch.zeros(2, 7)}, extra)
    with pytest.raises(StoreDamaged, match="differ"):
        open_folder(sharded)
    safetensors.torch.save_file({"x.0[10:13]": torch.zeros(2, 6)}, extra)
    with pytest.raises(StoreDamaged, match="has 2 rows"):
        open_folder(sharded)


def test_a_file_cut_short_after_it_was_opened(single: Path) -> None:
    session = open_folder(single)
    with (single / "activations.safetensors").open("r+b") as file:
        file.truncate(400)
    with pytest.raises(StoreDamaged, match="truncated"):
        np.asarray(session["x.0"])
