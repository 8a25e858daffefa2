from pathlib import Path

import pytest

from actograph.contract.errors import InvalidRequest
from actograph.stack import up


def test_devices_of_workers(subtests: pytest.Subtests) -> None:
    for device, workers, cards, expected in [
        ("auto", 1, 4, ["auto"]),
        ("auto", 3, 0, ["auto"] * 3),
        ("auto", 2, 1, ["auto"] * 2),
        ("auto", 3, 2, ["cuda:0", "cuda:1", "cuda:0"]),
        ("cuda:1", 2, 4, ["cuda:1"] * 2),
        ("cuda:0, cuda:2", 3, 4, ["cuda:0", "cuda:2", "cuda:0"]),
    ]:
        with subtests.test(device, workers=workers, cards=cards):
            assert up.devices(device, workers, cards) == expected
    for device in ("", "cpu,", ","):
        with subtests.test(device), pytest.raises(InvalidRequest, match="--device"):
            up.devices(device, 1, 0)


def test_cards_of_the_driver_and_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    monkeypatch.setattr(up, "NVIDIA", tmp_path / "gpus")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert up.count_cards() == 0
    for name in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / "gpus" / name).mkdir(parents=True)
    assert up.count_cards() == 2
    for visible, count in {"0,3": 2, "": 0, "-1": 0, "GPU-abc": 1}.items():
        with subtests.test(visible):
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
            assert up.count_cards() == count
