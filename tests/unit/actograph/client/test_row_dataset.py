"""Rows of many sessions as a torch dataset: each row once a pass, shuffled, in bounded memory."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actograph.client import Client
from actograph.client.matrix.row_dataset import to_torch_dataset
from actograph.client.tensors import open_folder
from actograph.contract.errors import InvalidRequest, NotFound

torch = pytest.importorskip("torch")


def numbers(rows: Any) -> list[int]:
    """The first value of each row, which tells it from all others."""
    found = list(rows)
    assert all(row.dtype == torch.float32 and row.shape == (4,) for row in found)
    return [int(row[0]) for row in found]


#: `resid_post.1` of session n has the rows 100 n, 100 n + 4, ...
EXPECTED = [100 * session + 4 * row for session in range(5) for row in range(7)]


@pytest.fixture
def folders(sessions: list[Any], store: Path) -> list[Any]:
    return [open_folder(store / "sessions" / session.id) for session in sessions]


@pytest.mark.parametrize(("block_rows", "buffer_rows"), [(1, 1), (3, 4), (64, 16_384)])
def test_a_pass_yields_each_row_once(folders: list[Any], block_rows: int, buffer_rows: int) -> None:
    sizes: dict[str, Any] = {"block_rows": block_rows, "buffer_rows": buffer_rows}
    rows = to_torch_dataset(folders, "blocks.1.hook_resid_post", seed=3, **sizes)
    assert len(rows) == len(EXPECTED)
    first, second = numbers(rows), numbers(rows)
    assert sorted(first) == sorted(second) == EXPECTED
    assert len({tuple(EXPECTED), tuple(first), tuple(second)}) == 3
    again = to_torch_dataset(folders, "resid_post.1", seed=3, **sizes)
    assert [numbers(again), numbers(again)] == [first, second]
    assert numbers(to_torch_dataset(folders, "resid_post.1", shuffle=False, **sizes)) == EXPECTED


def test_rows_come_through_the_service(service: Any, sessions: list[Any]) -> None:
    with Client(service.url) as client:
        rows = to_torch_dataset(client.sessions.list(order="asc"), "resid_post.1", shuffle=False)
        assert numbers(rows) == EXPECTED


def test_workers_share_the_rows(folders: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[int] = []
    for number in range(2):
        about = SimpleNamespace(id=number, num_workers=2)
        monkeypatch.setattr(torch.utils.data, "get_worker_info", lambda about=about: about)
        shared = numbers(to_torch_dataset(folders, "resid_post.1", block_rows=2))
        assert 0 < len(shared) < len(EXPECTED)
        found += shared
    assert sorted(found) == EXPECTED


def test_at_most_the_buffer_and_a_block_are_in_memory(
    folders: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from actograph.client.blocking.row_tensor import RowTensor

    read, asked = RowTensor.read, []

    def counted(self: RowTensor, low: int, high: int) -> Any:
        asked.append(high - low)
        return read(self, low, high)

    monkeypatch.setattr(RowTensor, "read", counted)
    rows = iter(to_torch_dataset(folders, "resid_post.1", block_rows=2, buffer_rows=4))
    for taken in range(1, len(EXPECTED) + 1):
        next(rows)
        assert sum(asked) - taken <= 4 + 2
    assert sum(asked) == len(EXPECTED) and max(asked) == 2
    assert next(rows, None) is None


def test_what_gives_no_dataset(folders: list[Any]) -> None:
    with pytest.raises(NotFound, match=r"resid_post\.9"):
        to_torch_dataset(folders, "resid_post.9")
    with pytest.raises(InvalidRequest, match="at least 1"):
        to_torch_dataset(folders, "resid_post.1", buffer_rows=0)
