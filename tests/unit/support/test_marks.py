"""Marks of benches and the facts of the machine in a result."""

import json
from pathlib import Path

import pytest

from tests.support.marks import Mark, machine, median_and_quartiles, write_result


def test_marks_say_whether_they_are_met_and_what_the_spread_allows(subtests: pytest.Subtests) -> None:
    for mark, met, note in [
        (Mark(name="ratio", measured=0.95, at_least=0.9), True, ""),
        (Mark(name="ratio", measured=1.2, at_most=1.05), False, ""),
        (Mark(name="ratio", measured=0.95, at_least=0.9, quartiles=(0.91, 0.99)), True, ""),
        (
            Mark(name="ratio", measured=0.98, at_least=0.97, quartiles=(0.9, 1.0)),
            True,
            "spread wider than the mark",
        ),
    ]:
        with subtests.test(mark=mark, met=met, note=note):
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
