"""Any member of any batch is what it is alone.

The members of a batch differ in one thing each: length, arrival, sampling, seed, penalties, stop, edit,
coefficient, positions, dtype of capture, reduction, scores.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.streaming_runs import Pair, assert_same, planned, prompts
from worker.engine.requests import Edit, GenerationRequest, RowShaping
from worker.engine.runs import RunRequest

HOOKS = ("resid_post.0", "mlp_in.1", "logits")
VECTOR = torch.linspace(-2, 2, 32)
POSITIONS = ("all", "prompt", "generated", "last", "last_prompt")
CAPTURES: list[dict[str, Any]] = [
    *({"positions": positions} for positions in POSITIONS),
    {"dtype": "bfloat16"},
    {"shaping": RowShaping(reduce="mean")},
    {"shaping": RowShaping(reduce="max"), "positions": "generated"},
    {"shaping": RowShaping(columns=(5, 1))},
]
SAMPLINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.7},
    {"temperature": 1.2, "top_k": 7},
    {"temperature": 0.9, "top_p": 0.8},
    {"presence_penalty": 1.5},
    {"frequency_penalty": 1.0, "temperature": 0.8},
    {"logit_bias": {3: 4.0, 9: -2.0}},
    {"stop": ["<3>", "<40>", "<77>"]},
    {"max_tokens": 2},
]
EDITS: list[tuple[Edit, ...]] = [
    (),
    (Edit(hook="resid_post.0", op="add", vector=VECTOR),),
    (Edit(hook="resid_post.0", op="add", vector=VECTOR, coefficient=-0.5),),
    (Edit(hook="attn_out.1", op="scale", coefficient=0.3, positions="generated"),),
    (Edit(hook="resid_post.1", op="project_out", vector=VECTOR, positions="last_prompt"),),
]
COMMON = prompts([24], seed=5)[0]


@dataclass(frozen=True)
class Member:
    """One request of a batch; the first of every field is the common case."""

    text: int
    length: int
    shares: bool  # begins as others do
    seed: int
    arrival: int
    sampling: int
    capture: int
    edits: int
    logprobs: int | None
    scored: bool

    def item(self, key: str) -> RunRequest:
        own = prompts([self.length], seed=self.text)[0]
        request = GenerationRequest(
            key=key,
            prompt_ids=(*COMMON, *own) if self.shares else own,
            seed=self.seed,
            edits=EDITS[self.edits],
            top_logprobs=self.logprobs,
            score_prompt=self.scored,
        )
        return RunRequest(request, planned(HOOKS, capture=CAPTURES[self.capture], **SAMPLINGS[self.sampling]))


FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "text": st.integers(0, 3),
    "length": st.integers(1, 40),
    "shares": st.booleans(),
    "seed": st.integers(0, 2**63 - 1),
    "arrival": st.integers(0, 12),
    "sampling": st.integers(0, len(SAMPLINGS) - 1),
    "capture": st.integers(0, len(CAPTURES) - 1),
    "edits": st.integers(0, len(EDITS) - 1),
    "logprobs": st.sampled_from([None, 0, 3]),
    "scored": st.booleans(),
}
USUAL: dict[str, Any] = {
    "text": 0,
    "length": 9,
    "shares": False,
    "seed": 7,
    "arrival": 0,
    "sampling": 0,
    "capture": 0,
    "edits": 0,
    "logprobs": None,
    "scored": False,
}


@st.composite
def batches(draw: st.DrawFn) -> list[Member]:
    """Members that are alike but for one field each."""
    base = {**USUAL, **{name: draw(FIELDS[name]) for name in draw(st.lists(st.sampled_from(list(FIELDS))))}}
    different = draw(st.lists(st.sampled_from(list(FIELDS)), min_size=1, max_size=6))
    return [Member(**{**base, name: draw(FIELDS[name])}) for name in different]


@pytest.mark.parametrize("name", ["llama", "gpt2"])
@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(batch=batches(), most=st.integers(1, 5), step_tokens=st.sampled_from([5, 16, 200]))
def test_any_member_is_what_it_is_alone(
    name: str, batch: list[Member], most: int, step_tokens: int, pair_of: Callable[[str], Pair]
) -> None:
    pair = pair_of(name)
    items = [member.item(str(i)) for i, member in enumerate(batch)]
    arrivals = [member.arrival for member in batch]
    desk, _ = pair.run(items, planned(HOOKS), most=most, step_tokens=step_tokens, arrivals=arrivals)
    for item in items:
        assert item.plan is not None
        assert_same(desk.kept[item.request.key], pair.trace(item.request, item.plan))
