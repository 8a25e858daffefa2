"""Runs cases of `fake_cuda_cases` in a process of its own."""

import json
import os
import subprocess
import sys
from typing import Any

from tests.support.availability import unavailable

#: exit status of a torch build that fake CUDA tensors do not work on
NO_GUARDS = 77


def run_cases(*names: str) -> dict[str, Any]:
    """The results of cases by name. Skips, with the reason, if this build of torch has no device guards."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.support.fake_cuda_cases", *names],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    if ended.returncode == NO_GUARDS:
        unavailable(ended.stderr.strip())
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def assert_admitted(runs: list[dict[str, Any]], slots: int = 256, *, least: int = 40) -> None:
    """All requests of every run were admitted, decoded together, and left a GB of the card.

    Args:
        least: requests at once with all points, whose blocks fill the card's share or the host's first.
    """
    for one in runs:
        assert one["errors"] == [], one
        assert one["rows"] >= (least if one["capture"] == "all" else slots), one
        assert one["left"] >= 10**9, one
