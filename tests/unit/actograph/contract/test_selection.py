"""Selections against a checker that looks at every token by itself."""

import itertools
from typing import Any

import pytest
from pydantic import ValidationError

from actograph.contract.interventions import Intervention
from actograph.contract.row_selection import Selection
from actograph.contract.specs import CaptureSpec


def selected(positions: Any, token: int, prompt: int, stop: int) -> bool:
    """Whether `positions` means a token of a sample of one turn."""
    if isinstance(positions, dict):
        return bool(token % positions["stride"] == 0)
    if isinstance(positions, str) and "[" in positions:
        name, bounds = positions[:-1].split("[")
        start, end = (int(bound) if bound else None for bound in bounds.split(":"))
        tokens = list(range(prompt)) if name == "prompt" else list(range(prompt, 100))
        return token in tokens[start:end]
    if isinstance(positions, list):
        return token in positions or token - prompt in [p for p in positions if p < 0]
    return {
        "all": True,
        "prompt": token < prompt,
        "generated": token >= prompt,
        "last": token == stop - 1,
        "last_prompt": token == prompt - 1,
    }[positions]


@pytest.mark.parametrize(
    "positions",
    [
        "all",
        "prompt",
        "generated",
        "last",
        "last_prompt",
        {"stride": 1},
        {"stride": 3},
        {"stride": 50},
        [0, -1],
        [3, 5, 900],
        [-2],
        "generated[0:3]",
        "generated[1:]",
        "generated[:2]",
        "generated[90:95]",
        "prompt[-3:]",
        "prompt[1:-1]",
        "prompt[:-1]",
        "prompt[:]",
    ],
)
def test_rows_are_the_selected_tokens(positions: Any) -> None:
    spec = CaptureSpec(positions=positions)
    for prompt, generated, tail in itertools.product((1, 2, 7), (0, 1, 2, 5), (False, True)):
        stop = prompt + max(0, generated - 1)
        first = prompt - 1 if tail else 0
        rows = Selection.of(spec.positions, prompt).rows(first, prompt, stop)
        assert list(rows) == [t for t in range(first, stop) if selected(positions, t, prompt, stop)]


def test_segments_are_bounded_by_the_tokens_that_can_be_theirs() -> None:
    assert Selection.of("think", 4).rows(0, 4, 9) == range(4, 9)
    assert Selection.of(CaptureSpec(positions=["prompt", "answer"]).positions, 4).rows(0, 4, 9) == range(9)
    assert Selection.of("tool_result", 4).rows(0, 4, 9) == range(9)
    assert Selection.of("think", 4).holds(6, "think")
    assert not Selection.of("think", 4).holds(6, "answer")


@pytest.mark.parametrize(
    "positions",
    ["generated[-5:]", "generated[3:3]", "prompt[4:2]", "answer[0:1]", "generated[0]", "generated[a:b]"],
)
def test_slices_that_the_pass_cannot_take(positions: str) -> None:
    """The end of a generation is not known in the pass, and neither are the sizes of segments."""
    with pytest.raises(ValidationError):
        CaptureSpec(positions=positions)


def test_slices_of_the_generation_need_one() -> None:
    with pytest.raises(ValidationError, match=r"generated\[0:3\] need generated tokens"):
        CaptureSpec(positions="generated[0:3]", mode="prefill")
    assert CaptureSpec(positions="prompt[-3:]", mode="prefill").positions == "prompt[-3:]"
    assert Intervention(hook="embed", op="zero", positions="generated[0:3]").positions == "generated[0:3]"
