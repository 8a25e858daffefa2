"""`python -m bench`: every bench that needs no input, one after the other, in its short form.

    python -m bench [--only NAME ...] [--out FOLDER] [--scale 1.0] [--quick] [--list]

Each program has a time limit of its own, stated below and printed; all together take about an hour
on four idle cores. One that fails or exceeds its limit does not stop the others. Results with the
facts of the machine go to bench/results as JSON; the marks are shown together at the end. The exit
status is 0 only where every program ended well and every mark is met.

`--quick` shows in some minutes that every program works: each with its smallest settings, whose figures
say nothing: they are kept only where `--out` says, and no mark is judged.
"""

import argparse
import shlex
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from actograph.demo import MODEL_DIR, PROBLEMS
from bench.marks import REPO
from bench.programs import Outcome, Program, run

RESULTS = REPO / "bench" / "results"
_DEMO = ("--model", str(MODEL_DIR), "--problems", str(PROBLEMS))


PROGRAMS = (
    Program(
        module="capture_throughput",
        quick=("--models", "python-bound", "--batches", "2", "--seconds", "1", "--rounds", "2"),
        minutes=8,
        limit_minutes=20,
    ),
    Program(
        module="peak_memory",
        quick=("--rounds", "1", "--tokens", "64", "128", "--cases", "small"),
        minutes=15,
        limit_minutes=45,
    ),
    Program(
        module="probe_speed",
        arguments=("--rows", "20000", "--width", "512"),
        quick=("--rows", "2000", "--width", "32", "--layers", "2"),
        minutes=3,
        limit_minutes=15,
    ),
    Program(module="session_files", quick=("--rounds", "2", "--sessions", "4"), minutes=3, limit_minutes=10),
    Program(
        module="session_listing",
        arguments=("--rounds", "10"),
        quick=("--rounds", "2", "--sessions", "2000"),
        minutes=3,
        limit_minutes=10,
    ),
    Program(
        module="full_index",
        arguments=("--full", "100000", "--rounds", "10"),
        quick=("--full", "20000", "--rounds", "2"),
        minutes=4,
        limit_minutes=15,
    ),
    Program(
        module="page_speed",
        quick=("--jobs", "200", "--sessions", "2000", "--problems", "50", "--tokens", "256", "--rounds", "2"),
        minutes=3,
        limit_minutes=15,
    ),
    Program(
        module="overhead",
        arguments=("--seconds", "5", "--rounds", "100"),
        quick=("--rate", "50", "--seconds", "1", "--rounds", "10", "--apis", "1"),
        minutes=4,
        limit_minutes=15,
    ),
    Program(
        module="workers",
        arguments=(*_DEMO, "--limit", "200"),
        quick=("--limit", "32", "--rounds", "1", "--workers", "1,2"),
        minutes=3,
        limit_minutes=15,
    ),
    Program(
        module="slow_store",
        arguments=("--samples", "300", "--rate", "10"),
        quick=("--samples", "60", "--rounds", "1", "--outage", "5"),
        minutes=6,
        limit_minutes=15,
    ),
    Program(
        module="chat_clients",
        arguments=("--chats", "4000", "--baseline-chats", "192"),
        quick=("--chats", "128", "--alone", "4", "--rounds", "1", "--baseline-chats", "0"),
        minutes=8,
        limit_minutes=30,
    ),
    Program(
        module="drain",
        arguments=(*_DEMO, "--limit", "200"),
        quick=("--limit", "32", "--threads", "1"),
        minutes=1,
        limit_minutes=10,
    ),
    Program(
        module="chaos",
        arguments=(*_DEMO, "--faults", "10"),
        quick=("--faults", "2", "--limit", "60"),
        minutes=4,
        limit_minutes=15,
    ),
)


def show(outcomes: Sequence[Outcome], *, with_marks: bool = True) -> None:
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
    console.print(programs)
    if with_marks:
        console.print(table)


def main() -> int:
    names = [program.module for program in PROGRAMS]
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--out", type=Path, help="folder of the results; default: bench/results")
    parser.add_argument("--scale", type=float, default=1.0, help="of the time limits, for a slow machine")
    parser.add_argument("--quick", action="store_true", help="the smallest settings: does everything work?")
    parser.add_argument("--list", action="store_true", help="print the commands and run none")
    options = parser.parse_args()
    chosen = [program for program in PROGRAMS if program.module in options.only]
    if options.list:
        for program in chosen:
            print(shlex.join(["python", "-m", *program.words(quick=options.quick)]))
        return 0
    with tempfile.TemporaryDirectory(prefix="actograph-bench-") as scratch:
        out = (options.out or (Path(scratch) if options.quick else RESULTS)).absolute()
        out.mkdir(parents=True, exist_ok=True)
        outcomes = [_run_told(program, out, options.scale, quick=options.quick) for program in chosen]
    show(outcomes, with_marks=not options.quick)
    ended_well = not any(outcome.trouble for outcome in outcomes)
    met = options.quick or all(mark["met"] for outcome in outcomes for mark in outcome.marks)
    return 0 if ended_well and met else 1


def _run_told(program: Program, out: Path, scale: float, *, quick: bool) -> Outcome:
    takes = "" if quick else f"about {program.minutes:g} minutes, "
    print(
        f"\n== bench.{program.module}: {takes}at most {program.limit_minutes * scale:g} minutes", flush=True
    )
    return run(program, out / f"{program.module.replace('_', '-')}.json", scale, quick=quick)


if __name__ == "__main__":
    sys.exit(main())
