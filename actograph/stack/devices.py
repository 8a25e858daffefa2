"""Which device each worker gets, found without torch."""

import os
from collections.abc import Mapping
from pathlib import Path

from actograph.contract.errors import InvalidRequest

_DRIVER = Path("/proc/driver/nvidia/gpus")


def assign(device: str, workers: int, cards: int) -> list[str]:
    """The device of each worker.

    `device` is one of torch's names, several with commas, or `auto`. With `auto` and several cards
    each worker gets one of its own in turn, where every worker would else choose the first.

    Raises:
        InvalidRequest: an empty name.
    """
    names = [name.strip() for name in device.split(",")]
    if not all(names):
        raise InvalidRequest(f"--device {device!r}: name devices as in cpu, cuda or cuda:0,cuda:1")
    if names == ["auto"] and cards > 1 and workers > 1:
        names = [f"cuda:{card}" for card in range(cards)]
    return [names[index % len(names)] for index in range(workers)]


def count_cards(environment: Mapping[str, str] = os.environ, driver: Path = _DRIVER) -> int:
    """NVIDIA cards that a process with this environment sees."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([part for part in visible.split(",") if part.strip() not in ("", "-1")])
    return len(list(driver.iterdir())) if driver.is_dir() else 0
