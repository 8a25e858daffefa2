"""Rows of packed steps: positions, choosers, columns, dtypes, reductions, statistics."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.support.streaming_runs import (
    CONFIGS,
    Desk,
    Kept,
    Pair,
    assert_same,
    build,
    planned,
    prompts,
    requests_of,
)
from worker.engine.requests import (
    BufferOptions,
    EarlierRows,
    GenerationRequest,
    RowShaping,
    StatisticsOptions,
)
from worker.engine.runs import RunRequest
from worker.engine.streaming.capture.lane import Lane
from worker.engine.streaming.verification import verify

HOOKS = ("resid_post.0", "mlp_in.1", "logits")
LENGTHS = [21, 3, 1, 34]


class EveryThird:
    """Every third token of the prompt, and generated tokens with an even id."""

    def __repr__(self) -> str:  # in the names of tests
        return type(self).__name__

    def of_prompt(self, prompt_ids: Sequence[int]) -> Sequence[int]:
        return range(0, len(prompt_ids), 3)

    def of_generation(self, prompt_ids: Sequence[int]) -> Callable[[int, int], bool]:
        last = len(prompt_ids) - 1

        def judge(token: int, token_id: int) -> bool:
            nonlocal last
            assert token == last + 1  # each token once, in order
            last = token
            return token_id % 2 == 0

        return judge


class Nothing(EveryThird):
    """No token."""

    def of_prompt(self, prompt_ids: Sequence[int]) -> Sequence[int]:
        return ()

    def of_generation(self, prompt_ids: Sequence[int]) -> Callable[[int, int], bool]:
        return lambda token, token_id: False


WAYS: list[dict[str, Any]] = [
    {"positions": "prompt"},
    {"positions": "generated"},
    {"positions": "last"},
    {"positions": "last_prompt"},
    {"dtype": "bfloat16"},
    {"dtype": "float16", "positions": "generated"},
    {"shaping": RowShaping(chooser=EveryThird())},
    {"shaping": RowShaping(chooser=Nothing())},
    {"shaping": RowShaping(columns=slice(0, 5))},
    {"shaping": RowShaping(columns=(7, 2, 11), chooser=EveryThird())},
    *({"shaping": RowShaping(reduce=reduce)} for reduce in ("mean", "max", "last")),
    {"shaping": RowShaping(reduce="mean", chooser=Nothing())},
    {"shaping": RowShaping(reduce="max"), "positions": "generated", "dtype": "bfloat16"},
    {"shaping": RowShaping(statistics=StatisticsOptions(threshold=0.3))},
    {"shaping": RowShaping(statistics=StatisticsOptions(rows=False), columns=(1, 4))},
]


@pytest.mark.parametrize("shards", [False, True])
@pytest.mark.parametrize("capture", WAYS, ids=str)
def test_rows_are_those_of_the_traced_engine(capture: dict[str, Any], shards: bool, pair: Pair) -> None:
    requests = requests_of(prompts(LENGTHS))
    plan = planned(HOOKS, capture=capture)
    options = BufferOptions(host_buffer_bytes=1 << 14) if shards else None
    desk, _ = pair.run(requests, plan, options=options)
    for request in requests:
        due = pair.trace(request, plan)
        got = desk.kept[request.key]
        for hook in list(due.chunks):
            if hook.endswith(".kurtosis"):  # of few rows it follows their rounding
                rows, other = got.rows(hook), due.rows(hook)
                torch.testing.assert_close(rows, other, atol=1e-2, rtol=1e-2, equal_nan=True)
                del got.chunks[hook], due.chunks[hook]
        assert_same(got, due)


def test_a_request_has_a_chooser_of_its_own(pair: Pair) -> None:
    first, second = requests_of(prompts([12, 9]))
    first = replace(first, chooser=EveryThird())
    plan = planned(HOOKS)
    desk, _ = pair.run([first, second], plan)
    for request in (first, second):
        assert_same(desk.kept[request.key], pair.trace(request, plan))
    assert desk.kept["s0"].tokens("resid_post.0")[:4] == [0, 3, 6, 9]


def test_summaries_go_on_from_earlier_turns(pair: Pair) -> None:
    plan = planned(HOOKS, capture={"shaping": RowShaping(reduce="mean")})
    found: list[Kept] = []

    def streamed(request: GenerationRequest) -> Kept:
        return pair.run([request], plan)[0].kept[request.key]

    def traced(request: GenerationRequest) -> Kept:
        return pair.trace(request, plan)

    for run in (streamed, traced):
        turns = requests_of(prompts([12, 9]))
        earlier = EarlierRows()
        run(replace(turns[0], earlier=earlier))
        found.append(run(replace(turns[1], earlier=EarlierRows(before=dict(earlier.after)))))
    assert_same(*found)
    assert found[0].chunks["resid_post.0"][0].over == 12 + 9 + 2 * 8


def test_router_rows_of_a_mixture_of_experts(pair_of: Callable[[str], Pair]) -> None:
    pair = pair_of("qwen3_moe")
    hooks = ("router_logits.0", "expert_weights.1", "expert_indices.1")
    requests = requests_of(prompts(LENGTHS))
    plan = planned(hooks, capture={"dtype": "bfloat16"})
    desk, _ = pair.run(requests, plan)
    for request in requests:
        kept = desk.kept[request.key]
        assert_same(kept, pair.trace(request, plan))
        assert kept.rows("expert_indices.1").dtype == torch.int64


def test_rows_that_are_finite_are_marked(pair: Pair) -> None:
    desk, _ = pair.run(requests_of(prompts([5])), planned(HOOKS))
    assert [chunk.finite for chunk in desk.kept["s0"].chunks["resid_post.0"]] == [True]


def test_a_reduction_of_integers_fails_its_request(pair_of: Callable[[str], Pair]) -> None:
    pair = pair_of("qwen3_moe")
    plan = planned(("expert_indices.1",), capture={"shaping": RowShaping(reduce="mean")})
    desk, _ = pair.run(requests_of(prompts([5])), plan)
    assert "holds integers" in str(desk.kept["s0"].generation.error)


def test_too_few_columns_fail_the_request(pair: Pair) -> None:
    plan = planned(("resid_post.0",), capture={"shaping": RowShaping(columns=(40,))})
    desk, _ = pair.run(requests_of(prompts([5])), plan)
    assert "has 32 features" in str(desk.kept["s0"].generation.error)


def test_the_sink_gets_places_that_are_used_again(pair: Pair) -> None:
    """Rows are valid until `write` returns, and no longer."""
    addresses: list[int] = []

    class Noting(Desk):
        def write(self, key: str, rows: Any) -> None:
            addresses.append(rows["resid_post.0"].tensor.data_ptr())
            super().write(key, rows)

    desk = Noting([RunRequest(r) for r in requests_of(prompts([5] * 12))])
    pair.run([], planned(HOOKS), desk=desk, most=2)
    assert len(addresses) == 12
    assert len(set(addresses)) <= 4  # two requests at once, and two on their way


def test_the_model_is_as_before_after_a_run(pair: Pair) -> None:
    hf = pair.traced.model.hf
    before = (pair.traced.model.text_config._attn_implementation, _hooks_of(hf))
    pair.run(requests_of(prompts([5])), planned(HOOKS))
    assert (pair.traced.model.text_config._attn_implementation, _hooks_of(hf)) == before


def _hooks_of(model: torch.nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_wrong_row_is_found_by_the_verification(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    take = Lane.take_generated

    def shifted(self: Lane, record: Any, token: int, place: int, kept: int) -> None:
        take(self, record, token, max(0, place - 1), kept)

    monkeypatch.setattr(Lane, "take_generated", shifted)
    engine, reason = verify(build(CONFIGS["llama"](), "llama", dtype).hooks)
    assert engine is None
    assert "has other rows for a prompt of" in reason
