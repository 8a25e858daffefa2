"""Marks of a bench, its figures and its machine: the common part of all results."""

import json
import os
import platform
import statistics
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[1]
_LIBRARIES = ("torch", "transformers", "nnsight")


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A bound on one figure; exactly one of `at_least` and `at_most` is set."""

    name: str
    measured: float
    at_least: float | None = None
    at_most: float | None = None
    #: of the repeats, where the figure is a median of ratios
    quartiles: tuple[float, float] | None = None

    @property
    def met(self) -> bool:
        if self.at_least is not None:
            return self.measured >= self.at_least
        return self.at_most is None or self.measured <= self.at_most

    @property
    def note(self) -> str:
        """Doubt about the verdict; empty without one."""
        if self.quartiles is None:
            return ""
        low, high = self.quartiles
        bound = self.at_least if self.at_least is not None else self.at_most
        if bound is not None and high - low > abs(1 - bound):
            return "spread wider than the mark"
        return ""

    def as_json(self) -> dict[str, Any]:
        bound = {"at_least": self.at_least} if self.at_least is not None else {"at_most": self.at_most}
        found: dict[str, Any] = {"name": self.name, "measured": self.measured, **bound, "met": self.met}
        if self.quartiles is not None:
            found["quartiles"] = list(self.quartiles)
        return found | ({"note": self.note} if self.note else {})


def median_and_quartiles(values: Sequence[float]) -> tuple[float, tuple[float, float]]:
    low, middle, high = statistics.quantiles(values, n=4) if len(values) > 1 else [*values] * 3
    return middle, (low, high)


def machine() -> dict[str, Any]:
    """Machine and versions behind a result."""
    return {
        "processor": platform.machine(),
        "cpus": os.cpu_count(),
        "cpus_usable": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load": [round(load, 2) for load in os.getloadavg()],
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in _LIBRARIES},
        "commit": _commit(),
    }


def write_result(path: Path | None, result: Mapping[str, Any], marks: Iterable[Mark] = ()) -> None:
    """Write a bench's result as JSON with its marks and the machine; nothing where `path` is None."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    whole = {"marks": [mark.as_json() for mark in marks], **result, "machine": machine()}
    path.write_text(json.dumps(whole, indent=1) + "\n")


def print_marks(marks: Iterable[Mark]) -> None:
    """One line per mark: what was asked, what came, whether it is met."""
    for mark in marks:
        asked = f">= {mark.at_least}" if mark.at_least is not None else f"<= {mark.at_most}"
        verdict = "met" if mark.met else "MISSED"
        print(
            f"mark: {mark.name} {asked}: {mark.measured:.3f}, {verdict}" + (mark.note and f" ({mark.note})")
        )


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit that was measured, with a `+` where files differ from it."""
    git = ["git", "-C", str(REPO)]
    try:
        commit = subprocess.run(
            [*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True
        ).stdout.strip()
        dirty = subprocess.run(
            [*git, "status", "--porcelain", "--untracked-files=no"], check=True, capture_output=True
        ).stdout
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit + ("+" if dirty else "")
