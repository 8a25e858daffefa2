"""Which rows a choice of tokens means."""

from typing import Any

import pytest

from actograph.client.matrix.chosen_rows import NamedSpan, row_ranges, spelled_out, token_spans
from actograph.contract.errors import InvalidRequest
from actograph.contract.resources import Session


def session(prompt: int, generated: int) -> Session:
    return Session(
        id="ses_1", job_id="job_1", sample_id="smp_1", sample_index=0, model="m", created_at=0,
        prompt_tokens=prompt, generated_tokens=generated, rows=prompt + generated - bool(generated), bytes=0,
        dtype="F32", hooks={}, files=[],
    )  # fmt: skip


SEGMENTS = [
    NamedSpan(name="prompt", start=0, stop=5),
    NamedSpan(name="think", start=5, stop=6),
    NamedSpan(name="answer", start=6, stop=8),
    NamedSpan(name="think", start=8, stop=9),
]


def test_tokens(subtests: pytest.Subtests) -> None:
    for rows, spans in [
        ("all", [(0, 8)]),
        ("prompt", [(0, 5)]),
        ("generated", [(5, 8)]),
        ("last", [(7, 8)]),
        ("last_prompt", [(4, 5)]),
        ("think", [(5, 6), (8, 9)]),
        ("tool_result", []),
        (0, [(0, 1)]),
        (6, [(6, 7)]),
        (-1, [(4, 5)]),
    ]:
        with subtests.test(rows=rows, spans=spans):
            assert token_spans(session(5, 4), rows, SEGMENTS) == spans


def test_a_text_that_was_only_read_has_a_row_for_its_last_token() -> None:
    assert token_spans(session(5, 0), "last", []) == [(4, 5)]
    assert token_spans(session(5, 0), "generated", []) == [(5, 5)]


@pytest.mark.parametrize(
    ("tokens", "spans", "ranges"),
    [
        (range(0, 8), [(2, 4), (6, 99)], [(2, 4), (6, 8)]),
        (range(4, 8), [(0, 5)], [(0, 1)]),
        (range(4, 8), [(0, 4)], []),
        (range(4, 8), [(-2, 3)], []),
        ([0, 4, 6], [(4, 7)], [(1, 3)]),
        ([0, 4, 6], [(0, 1), (6, 7)], [(0, 1), (2, 3)]),
        ([0, 4, 6], [(5, 6)], []),
    ],
)
def test_rows_of_tokens(tokens: Any, spans: Any, ranges: list[tuple[int, int]]) -> None:
    assert list(row_ranges(tokens, spans)) == ranges


def test_mean_is_all_rows_averaged() -> None:
    assert spelled_out("mean", "none") == ("all", "mean")
    assert spelled_out("think", "max") == ("think", "max")
    for rows, reduce in (("mean", "max"), ("middle", "none"), (True, "none"), ("all", "sum")):
        with pytest.raises(InvalidRequest):
            spelled_out(rows, reduce)  # type: ignore[arg-type]
