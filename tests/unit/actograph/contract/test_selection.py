"""Selections against a checker that looks at every token by itself."""

import itertools
from typing import Any

import pytest
from pydantic import ValidationError

from actograph.contract.analyses import CompareSpec, LensSpec, OutliersSpec, ProbeSpec
from actograph.contract.interventions import Intervention
from actograph.contract.row_selection import Selection
from actograph.contract.specs import CaptureSpec


def selected(positions: Any, token: int, prompt: int, stop: int) -> bool:
    """Whether `positions` means a token of a sample of one turn."""
    if isinstance(positions, dict) and "start" in positions:
        return bool(positions["start"] <= token < positions.get("stop", 1000))
    if isinstance(positions, dict):
        return bool(token % positions["stride"] == 0)
    if isinstance(positions, list):
        return token in positions or token - prompt in [p for p in positions if p < 0]
    sliced = {
        "prompt[-2:]": range(prompt)[-2:], "prompt[0]": range(1), "generated[0:3]": range(prompt, prompt + 3),
        "generated[1::2]": range(prompt + 1, 1000, 2), "all[1:4]": range(1, 4),
    }  # fmt: skip
    if positions in sliced:
        return token in sliced[positions]
    return {
        "all": True,
        "prompt": token < prompt,
        "generated": token >= prompt,
        "last": token == stop - 1,
        "last_prompt": token == prompt - 1,
    }[positions]


def test_rows_are_the_selected_tokens(subtests: pytest.Subtests) -> None:
    for positions in [
        "all",
        "prompt",
        "generated",
        "last",
        "last_prompt",
        {"stride": 1},
        {"stride": 3},
        {"stride": 50},
        {"start": 2},
        {"start": 1, "stop": 4},
        [0, -1],
        [3, 5, 900],
        [-2],
        "prompt[-2:]",
        "prompt[0]",
        "generated[0:3]",
        "generated[1::2]",
        "all[1:4]",
    ]:
        with subtests.test(positions=positions):
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


def test_unknown_positions_are_answered_with_the_nearest_name_everywhere(subtests: pytest.Subtests) -> None:
    query = {"jobs": ["job_" + "0" * 32]}
    places: list[tuple[Any, dict[str, Any]]] = [
        (CaptureSpec, {}),
        (Intervention, {"hook": "embed", "op": "zero"}),
        (ProbeSpec, {"kind": "probe", "sessions": query}),
        (CompareSpec, {"kind": "compare", "sessions": query, "other": query}),
        (LensSpec, {"kind": "lens", "sessions": query}),
        (OutliersSpec, {"kind": "outliers", "sessions": query}),
    ]
    cases = [
        ("generatd", "'generatd' selects no tokens. Did you mean 'generated'? Write a name"),
        ("last_promt", "Did you mean 'last_prompt'?"),
        ("anser[-5:]", "Did you mean 'answer'?"),
        ("think,anser", "Did you mean 'answer'?"),
        ("generated[a]", "'generated[a]' selects no tokens. Write a name"),
        ("generated[3:1]", "the second number must be larger"),
        ("[1", "selects no tokens. Known: all,"),
    ]
    for kind, fields in places:
        for positions, says in cases:
            with subtests.test(kind=kind.__name__, positions=positions):
                with pytest.raises(ValidationError) as caught:
                    kind.model_validate(fields | {"positions": positions})
                (error,) = caught.value.errors()
                assert says in error["msg"]
                assert len(error["msg"]) < 260
