"""`python -m bench`: every bench that needs no input, one after the other, in its short form.

    python -m bench [--only NAME ...] [--out FOLDER] [--scale 1.0]

Each program has a time limit of its own, stated below and printed; all together take about 50 minutes
on four idle cores. One that fails or exceeds its limit does not stop the others. Results with the
facts of the machine go to bench/results as JSON; the marks are shown together at the end. The exit
status is 0 only where every program ended well and every mark is met.
"""

import argparse
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

from rich.console import Console
from rich.table import Table

from actograph.demo import MODEL_DIR, PROBLEMS
from bench.marks import REPO

RESULTS = REPO / "bench" / "results"
_DEMO = ("--model", str(MODEL_DIR), "--problems", str(PROBLEMS))


@dataclass(frozen=True, kw_only=True)
class Program:
    """One bench and how long it may take."""

    module: str
    arguments: tuple[str, ...] = ()
    minutes: float  # that it takes on four idle cores, about
    limit_minutes: float


PROGRAMS = (
    Program(module="capture_throughput", minutes=8, limit_minutes=20),
    Program(module="peak_memory", minutes=15, limit_minutes=45),
    Program(module="prefill_chunks", minutes=5, limit_minutes=20),
    Program(module="session_files", minutes=3, limit_minutes=10),
    Program(module="session_listing", arguments=("--rounds", "10"), minutes=3, limit_minutes=10),
    Program(module="overhead", arguments=("--seconds", "5", "--rounds", "100"), minutes=4, limit_minutes=15),
    Program(module="workers", arguments=(*_DEMO, "--limit", "200"), minutes=3, limit_minutes=15),
    Program(module="eta", minutes=1, limit_minutes=10),
    Program(module="drain", arguments=(*_DEMO, "--limit", "200"), minutes=1, limit_minutes=10),
    Program(module="chaos", arguments=(*_DEMO, "--faults", "10"), minutes=4, limit_minutes=15),
)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a program: `trouble` is empty where it ended well."""

    module: str
    minutes: float
    trouble: str
    marks: Sequence[dict[str, Any]]


def run(program: Program, result: Path, scale: float) -> Outcome:
    """Run one program in a process group of its own, which ends with its time."""
    result.unlink(missing_ok=True)  # an old one must not be taken for the new
    command = [sys.executable, "-m", f"bench.{program.module}", *program.arguments, "--json", str(result)]
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


def show(outcomes: Sequence[Outcome]) -> None:
    table = Table("mark", "asked", "measured", "", title="marks")
    for outcome in outcomes:
        for mark in outcome.marks:
            asked = f">= {mark['at_least']:g}" if "at_least" in mark else f"<= {mark['at_most']:g}"
            verdict = "met" if mark["met"] else "MISSED"
            note = f" ({mark['note']})" if "note" in mark else ""
            table.add_row(mark["name"], asked, f"{mark['measured']:.3f}", verdict + note)
    programs = Table("program", "minutes", "", title="programs")
    for outcome in outcomes:
        programs.add_row(outcome.module, f"{outcome.minutes:.1f}", outcome.trouble or "done")
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(programs, table)


def main() -> int:
    names = [program.module for program in PROGRAMS]
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the results")
    parser.add_argument("--scale", type=float, default=1.0, help="of the time limits, for a slow machine")
    options = parser.parse_args()
    chosen = [program for program in PROGRAMS if program.module in options.only]
    options.out.mkdir(parents=True, exist_ok=True)
    outcomes = []
    for program in chosen:
        print(
            f"\n== bench.{program.module}: about {program.minutes:g} minutes, "
            f"at most {program.limit_minutes * options.scale:g}",
            flush=True,
        )
        result = options.out.absolute() / f"{program.module.replace('_', '-')}.json"
        outcomes.append(run(program, result, options.scale))
    show(outcomes)
    good = all(not o.trouble and all(mark["met"] for mark in o.marks) for o in outcomes)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
