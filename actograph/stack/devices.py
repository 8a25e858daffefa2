"""Assign devices to workers, without torch."""

import os
from collections.abc import Mapping
from pathlib import Path

from actograph.contract.errors import InvalidRequest

_DRIVER = Path("/proc/driver/nvidia/gpus")


def assign(device: str, workers: int, cards: int) -> list[str]:
    """Return the device of each worker.

    `device` is a torch device, several with commas, or `auto`. With `auto`, workers take the cards in turn;
    otherwise all would choose the first.

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
    """Count the NVIDIA cards visible to a process with this environment."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([part for part in visible.split(",") if part.strip() not in ("", "-1")])
    return len(list(driver.iterdir())) if driver.is_dir() else 0
