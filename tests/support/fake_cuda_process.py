"""Runs cases of `fake_cuda_cases` in a process of its own."""

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from evals import plans
from tests.support.availability import unavailable

#: exit status of a torch build that fake CUDA tensors do not work on
NO_GUARDS = 77


class Cases:
    """Runs cases together in one process, and once for all processes of a test run.

    Args:
        names: of cases that the chosen tests read.
        folder: of the test run, for the results.
    """

    def __init__(self, names: Iterable[str], folder: Path) -> None:
        self._names, self._file = tuple(dict.fromkeys(names)), folder / "fake_cuda_cases.json"
        self._results: dict[str, Any] | None = None

    def __getitem__(self, name: str) -> Any:
        """The result of a case. The first call runs all of them."""
        if self._results is None:
            with self._file.with_suffix(".lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # another process may be at it
                if not self._file.exists():
                    self._file.write_text(json.dumps(run_cases(*self._names)))
            self._results = json.loads(self._file.read_text())
        return checked(self._results[name])


def checked(result: Any) -> Any:
    """The result of a case. Fails if the case did."""
    if isinstance(result, dict) and "raised" in result:
        pytest.fail(result["raised"], pytrace=False)
    return result


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
    if ended.returncode != 0:
        return {name: {"raised": ended.stderr} for name in names}
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def assert_planned(choices: list[dict[str, int]]) -> None:
    """The plan of passes that choose tokens is what they take."""
    for one in choices:
        planned = plans.choice_bytes(one["rows"], one["vocabulary"])
        assert 0.85 < planned / one["bytes"] < 1.15, one


def assert_replayed(graphs: dict[str, Any]) -> None:
    """Graphs are captured in the first turn of a run, serve all of its passes, and stay for the next run."""
    for name in ("waves", "orders", "waves again", "orders again"):
        one: dict[str, Any] = graphs[name]
        assert (one["errors"], one["requests"]) == ([], 32), name
        assert one["captures"] == (0 if "again" in name else graphs["at load"]), name
        assert one["replays"] == one["passes"] > 0, name
    # each call names the model's device, which need not be the first
    assert graphs["unnamed"] == []


def assert_admitted(runs: list[dict[str, Any]], slots: int = 256, *, least: int = 40) -> None:
    """All requests of every run were admitted, decoded together, and left a GB of the card.

    Args:
        least: requests at once with all points, whose blocks fill the card's share or the host's first.
    """
    for one in runs:
        assert one["errors"] == [], one
        assert one["rows"] >= (least if one["capture"] == "all" else slots), one
        assert one["left"] >= 10**9, one
