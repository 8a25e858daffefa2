from pathlib import Path

import pytest

from actograph.contract.errors import InvalidRequest
from actograph.stack import devices


@pytest.mark.parametrize(
    ("device", "workers", "cards", "expected"),
    [
        ("auto", 1, 4, ["auto"]),
        ("auto", 3, 0, ["auto"] * 3),
        ("auto", 2, 1, ["auto"] * 2),
        ("auto", 3, 2, ["cuda:0", "cuda:1", "cuda:0"]),
        ("cuda:1", 2, 4, ["cuda:1"] * 2),
        ("cuda:0, cuda:2", 3, 4, ["cuda:0", "cuda:2", "cuda:0"]),
        ("cpu", 1, 0, ["cpu"]),
    ],
)
def test_assignment(device: str, workers: int, cards: int, expected: list[str]) -> None:
    assert devices.assign(device, workers, cards) == expected


@pytest.mark.parametrize("device", ["", "cpu,", ","])
def test_empty_names(device: str) -> None:
    with pytest.raises(InvalidRequest, match="--device"):
        devices.assign(device, 1, 0)


def test_cards_that_the_driver_lists(tmp_path: Path) -> None:
    for name in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / name).mkdir()
    assert devices.count_cards({}, tmp_path) == 2
    assert devices.count_cards({}, tmp_path / "none") == 0


@pytest.mark.parametrize(("visible", "count"), [("0,3", 2), ("", 0), ("-1", 0), ("GPU-abc", 1)])
def test_cards_that_the_environment_leaves(tmp_path: Path, visible: str, count: int) -> None:
    assert devices.count_cards({"CUDA_VISIBLE_DEVICES": visible}, tmp_path) == count
