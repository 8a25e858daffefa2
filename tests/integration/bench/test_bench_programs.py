"""`python -m bench`: programs that fail or hang are reported and leave no process behind."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.bench_programs import Program, run
from tests.support.marks import REPO, Mark, write_result
from tests.support.processes import has_ended

pytestmark = pytest.mark.integration


def program(module: str, *arguments: str, limit: float = 1.0) -> Program:
    return Program(module=module, arguments=arguments, minutes=1, limit_minutes=limit)


def test_a_program_that_fails_is_told_by_its_status(tmp_path: Path) -> None:
    outcome = run(program("marks_of_nothing"), tmp_path / "found.json", 1.0)
    assert outcome.trouble == "exit status 1" and not outcome.marks


def test_an_old_result_is_not_taken_for_a_new_one(tmp_path: Path) -> None:
    old = tmp_path / "found.json"
    write_result(old, {}, [Mark(name="old", measured=1.0, at_least=0.5)])
    outcome = run(program("shapes"), old, 1.0)
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


def test_quick_runs_the_programs_that_are_named(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench", "--quick", "--only", "memory_plan", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "memory-plan.json").read_text())
    assert found["max_tokens"] == 64, "the settings of --quick"


def test_programs_know_their_settings() -> None:
    listed = subprocess.run(
        [sys.executable, "-m", "bench", "--quick", "--list"],
        cwd=REPO,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert len(listed) > 10
    for line in listed:
        module, *arguments = shlex.split(line.removeprefix("python -m "))
        text = (REPO / Path(*module.split("."))).with_suffix(".py").read_text(encoding="utf-8")
        for flag in (word for word in arguments if word.startswith("--")):
            assert f'"{flag}"' in text, f"{module} knows no {flag}"


def test_the_table_of_a_card_runs_on_a_cpu_too(tmp_path: Path) -> None:
    found = tmp_path / "gpu.json"
    command = [
        sys.executable, "-m", "bench", "gpu", "--shape", "tiny", "--slots", "4", "--samples", "3",
        "--scale", "0.03", "--device", "cpu", "--json", str(found),
    ]  # fmt: skip
    ran = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=True)
    ways = json.loads(found.read_text())["ways"]
    assert [way["way"] for way in ways].count("streaming, 4 rows") == 3
    assert all(way["tokens_per_second"] > 0 for way in ways)
    assert len(ran.stdout.splitlines()) == len(ways)
