"""`python -m bench`: a program that fails or hangs is told, and none of it is left running."""

import json
from pathlib import Path

import psutil
import pytest

from bench.__main__ import PROGRAMS, Program, run
from bench.marks import REPO, Mark, machine, median_and_quartiles, write_result
from tests.support.processes import has_ended


def program(module: str, *arguments: str, limit: float = 1.0) -> Program:
    return Program(module=module, arguments=arguments, minutes=1, limit_minutes=limit)


def test_a_program_that_fails_is_told_by_its_status(tmp_path: Path) -> None:
    outcome = run(program("marks_of_nothing"), tmp_path / "found.json", 1.0)
    assert outcome.trouble == "exit status 1" and not outcome.marks


def test_an_old_result_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    old = tmp_path / "found.json"
    write_result(old, {}, [Mark(name="old", measured=1.0, at_least=0.5)])
    outcome = run(program("marks"), old, 1.0)
    assert outcome.trouble == "no result was written" and not outcome.marks


def test_a_program_beyond_its_time_is_ended(tmp_path: Path) -> None:
    before = set(psutil.Process().children())
    outcome = run(program("session_files", limit=0.01), tmp_path / "found.json", 1.0)
    assert outcome.trouble == "not done in 0.01 minutes"
    left = set(psutil.Process().children()) - before
    assert all(has_ended(child) for child in left)


def test_quick_adds_the_smallest_settings(tmp_path: Path) -> None:
    quick = Program(module="drain", quick=("--help",), minutes=1, limit_minutes=1)
    assert run(quick, tmp_path / "found.json", 1.0, quick=True).trouble == "no result was written"
    assert run(quick, tmp_path / "found.json", 1.0).trouble == "exit status 2"  # it asks for a model


@pytest.mark.parametrize("program", PROGRAMS, ids=[program.module for program in PROGRAMS])
def test_programs_know_their_settings(program: Program) -> None:
    folder = REPO / "bench" / program.module
    source = folder / "__main__.py" if folder.is_dir() else folder.with_suffix(".py")
    text = source.read_text(encoding="utf-8")
    assert program.quick, "a bench that --quick does not shorten"
    for flag in (word for word in (*program.arguments, *program.quick) if word.startswith("--")):
        assert f'"{flag}"' in text, f"{program.module} knows no {flag}"


@pytest.mark.parametrize(
    ("mark", "met", "note"),
    [
        (Mark(name="ratio", measured=0.95, at_least=0.9), True, ""),
        (Mark(name="ratio", measured=1.2, at_most=1.05), False, ""),
        (Mark(name="ratio", measured=0.95, at_least=0.9, quartiles=(0.91, 0.99)), True, ""),
        (
            Mark(name="ratio", measured=0.98, at_least=0.97, quartiles=(0.9, 1.0)),
            True,
            "spread wider than the mark",
        ),
    ],
)
def test_marks_say_whether_they_are_met_and_what_the_spread_allows(mark: Mark, met: bool, note: str) -> None:
    assert (mark.met, mark.note) == (met, note)


def test_a_result_names_the_machine(tmp_path: Path) -> None:
    middle, quartiles = median_and_quartiles([1.0, 2.0, 3.0])
    write_result(
        tmp_path / "new" / "found.json",
        {"rounds": 3},
        [Mark(name="m", measured=middle, at_least=1.5, quartiles=quartiles)],
    )
    found = json.loads((tmp_path / "new" / "found.json").read_text())
    assert found["rounds"] == 3 and found["marks"][0]["met"] and found["marks"][0]["quartiles"] == [1.0, 3.0]
    assert found["machine"].keys() == machine().keys() and found["machine"]["cpus"] >= 1
