"""Which rows of a stored tensor the positions mean, in matrices and in comparisons."""

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from actograph.contract.interventions import Intervention
from actograph.contract.row_selection import Positions, Segment, Selection, consecutive, stored_rows
from actograph.contract.specs import CaptureSpec

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
        ("generated[0:2]", range(8), [5, 6]),
        ("generated[-2:]", range(8), [6, 7]),
        ("generated[-9:-2]", range(8), [5]),
        ("generated[1]", [0, 4, 6], [2]),
        ("answer[-1]", range(8), [7]),
        ("think[-1]", range(8), [5]),  # token 8 was not run
        ("prompt[-2:]", range(8), [3, 4]),
        ("all[::4]", range(8), [0, 4]),
        ("all[-3:]", range(2, 8), [3, 4, 5]),
        ("turn.0[1:]", range(8), [6, 7]),
        ("turn.-1", range(8), [5, 6, 7]),
        ("turn.1", range(8), []),
        ("think,answer", range(4, 8), [1, 2, 3]),
        ("-1,6", range(8), [4, 6]),
        ("[-1, 6]", range(8), [4, 6]),
        (6, range(8), [6]),
    ]:
        with subtests.test(positions=positions, tokens=tokens):
            assert rows(positions, tokens) == found


def test_turns_are_parted_by_what_others_say() -> None:
    names = ["prompt"] * 2 + ["answer", "tool_call"] + ["tool_result"] + ["answer"] * 3
    for positions, tokens in {
        "turn.0": [2, 3], "turn.1[0:2]": [5, 6], "turn.-1[-1]": [7], "turn.2": [], "generated[2]": [5],
        "answer[1:]": [5, 6, 7], "tool_result[0]": [4],
    }.items():  # fmt: skip
        selection = Selection.of(_positions.validate_python(positions), 2)
        assert list(selection.among(names)) == tokens
        if "-" not in positions:
            judge = selection.follow()
            assert [n for n, name in enumerate(names) if judge(n, name)] == tokens


def test_slices_that_mean_nothing(subtests: pytest.Subtests) -> None:
    for text in ("generated[3:3]", "generated[-1:-2]", "generated[]", "middle[0:1]", "all[0:1:0]", "turn"):
        with subtests.test(text=text), pytest.raises(ValidationError):
            _positions.validate_python(text)


def test_ends_are_not_known_while_the_model_writes(subtests: pytest.Subtests) -> None:
    for text in ("generated[-5:]", "all[:-1]", "turn.-1", "answer[-1]"):
        with subtests.test(text=text), pytest.raises(ValidationError, match="matrices, probes"):
            Intervention(hook="embed", op="zero", positions=text)
    assert Intervention(hook="embed", op="zero", positions="prompt[-3:]").positions == "prompt[-3:]"
    with pytest.raises(ValidationError, match="prefill"):
        CaptureSpec(mode="prefill", positions="turn.0")


def test_a_capture_counts_few_tokens_from_the_end(subtests: pytest.Subtests) -> None:
    for text in ("generated[-5:]", "answer[-1]", "turn.-1[-128:-2]", "tool_result[-3::2]"):
        assert CaptureSpec(positions=text).positions == text
        for summary in ({"reduce": "mean"}, {"stats": True}):
            with (
                subtests.test(text=text, summary=summary),
                pytest.raises(ValidationError, match="sum rows up"),
            ):
                CaptureSpec.model_validate({"positions": text, **summary})
    for text in ("all[:-1]", "generated[2:-2]", "generated[-129:]", "turn.-1", "turn.1[-5:]", "turn.-2[-5:]"):
        with subtests.test(text=text), pytest.raises(ValidationError, match="can keep"):
            CaptureSpec(positions=text)


def test_a_text_that_was_only_read_has_a_row_for_its_last_token() -> None:
    assert rows("last", range(5), ran=5) == [4]


def test_rows_are_read_in_consecutive_ranges() -> None:
    assert list(consecutive([0, 1, 2, 5, 7, 8])) == [(0, 3), (5, 6), (7, 9)]
    assert list(consecutive([])) == []
