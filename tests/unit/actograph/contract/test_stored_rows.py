"""Which rows of a stored tensor the positions mean, in matrices and in comparisons."""

from typing import Any

import pytest
from pydantic import TypeAdapter

from actograph.contract.row_selection import Positions, Segment, consecutive, stored_rows

SEGMENTS = [
    Segment(name="prompt", start=0, stop=5),
    Segment(name="think", start=5, stop=6),
    Segment(name="answer", start=6, stop=8),
    Segment(name="think", start=8, stop=9),
]
_positions: TypeAdapter[Positions] = TypeAdapter(Positions)


def rows(positions: Any, tokens: Any, ran: int = 8) -> list[int]:
    given = _positions.validate_python(positions)
    return stored_rows(given, tokens, prompt_tokens=5, ran=ran, segments=SEGMENTS)


def test_rows_of_positions(subtests: pytest.Subtests) -> None:
    for positions, tokens, found in [
        ("all", range(8), [0, 1, 2, 3, 4, 5, 6, 7]),
        ("prompt", range(8), [0, 1, 2, 3, 4]),
        ("generated", range(8), [5, 6, 7]),
        ("last", range(8), [7]),
        ("last", [0, 4, 6], []),
        ("last_prompt", range(8), [4]),
        ("last_prompt", [0, 4, 6], [1]),
        ("think", range(8), [5]),
        (["think", "answer"], range(4, 8), [1, 2, 3]),
        ("tool_result", range(8), []),
        ([0], range(8), [0]),
        ([-1, 6], range(8), [4, 6]),
        ({"stride": 3}, range(8), [0, 3, 6]),
        ({"start": 6}, [0, 4, 6], [2]),
        ({"start": 1, "stop": 3}, range(2, 8), [0]),
    ]:
        with subtests.test(positions=positions, tokens=tokens):
            assert rows(positions, tokens) == found


def test_a_text_that_was_only_read_has_a_row_for_its_last_token() -> None:
    assert rows("last", range(5), ran=5) == [4]


def test_rows_are_read_in_consecutive_ranges() -> None:
    assert list(consecutive([0, 1, 2, 5, 7, 8])) == [(0, 3), (5, 6), (7, 9)]
    assert list(consecutive([])) == []
