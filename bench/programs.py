"""Run one bench within its time limit and read its marks."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.marks import REPO


@dataclass(frozen=True, kw_only=True)
class Program:
    """One bench and how long it may take."""

    module: str
    arguments: tuple[str, ...] = ()
    #: what `--quick` adds; of an option that is given twice the last one counts
    quick: tuple[str, ...] = ()
    minutes: float  # that it takes on four idle cores, about
    limit_minutes: float

    def words(self, *, quick: bool) -> list[str]:
        """Module and arguments, as `python -m` takes them."""
        return [f"bench.{self.module}", *self.arguments, *(self.quick if quick else ())]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Result of one program; `trouble` is empty if it succeeded."""

    module: str
    minutes: float
    trouble: str
    marks: Sequence[dict[str, Any]]


def run(program: Program, result: Path, scale: float, *, quick: bool = False) -> Outcome:
    """Run one program in a process group of its own, which ends with its time."""
    result.unlink(missing_ok=True)  # an old one must not be taken for the new
    command = [sys.executable, "-m", *program.words(quick=quick), "--json", str(result)]
    started = time.monotonic()
    process = subprocess.Popen(command, cwd=REPO, start_new_session=True)
    trouble = ""
    try:
        if status := process.wait(timeout=60 * program.limit_minutes * scale):
            trouble = f"exit status {status}"
    except subprocess.TimeoutExpired:
        trouble = f"not done in {program.limit_minutes * scale:g} minutes"
    finally:
        _end(process)
    marks = _marks(result)
    if marks is None:
        trouble = trouble or "no result was written"
    minutes = (time.monotonic() - started) / 60
    return Outcome(module=program.module, minutes=minutes, trouble=trouble, marks=marks or ())


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End what is left of the program's group: first by SIGINT, so that it stops what it started."""
    for sign in (signal.SIGINT, signal.SIGKILL):
        if process.poll() is not None:
            return
        os.killpg(process.pid, sign)
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            continue


def _marks(result: Path) -> list[dict[str, Any]] | None:
    try:
        found: list[dict[str, Any]] = json.loads(result.read_text()).get("marks", [])
    except (OSError, ValueError):
        return None
    return found
