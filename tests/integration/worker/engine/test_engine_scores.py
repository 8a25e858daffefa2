"""Log probabilities of prompts: those of a plain forward, in any batch, few logits at a time."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, Gemma2Config

from actograph.contract.errors import InterventionFailed
from actograph.contract.row_selection import TokenRange
from actograph.contract.specs import SamplingSpec
from tests.support.architectures import COMMON
from tests.support.engine_run import KeepingSink, generate, random_engine, read_texts, requests_for
from tests.support.plain_forward import plain_rows
from worker.engine.engine import Engine
from worker.engine.messages import Edit, Generation, Request, TokenLogprobs
from worker.engine.stream import loop

pytestmark = pytest.mark.integration

EngineOf = Callable[[str], Engine]
PROMPTS = ["Tom has 34 books and Mia has 57 books. How many do they have?", "The cat", "a", "One day, a dog"]
GREEDY = SamplingSpec(max_tokens=4)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three tokens at a time."""
    monkeypatch.setattr(loop, "scored_tokens", lambda vocabulary: 3)


def asking(requests: list[Request], top: int = 2) -> list[Request]:
    return [replace(request, score_prompt=True, top_logprobs=top) for request in requests]


def forward(engine: Engine, ids: tuple[int, ...]) -> torch.Tensor:
    """Log probabilities [tokens, vocab] of one plain forward."""
    with torch.inference_mode():
        logits = engine.model.hf(torch.tensor([ids])).logits[0]
    found: torch.Tensor = logits.float().log_softmax(-1)
    return found


def scores_of(made: Generation) -> list[TokenLogprobs]:
    assert made.error is None and made.prompt_logprobs is not None
    first, *rest = made.prompt_logprobs
    assert first is None and len(rest) == len(made.prompt_ids) - 1
    return [score for score in rest if score is not None]


def assert_right(made: Generation, wanted: torch.Tensor, top: int = 2) -> None:
    for score, token, row in zip(scores_of(made), made.prompt_ids[1:], wanted, strict=False):
        assert score.token_id == token
        assert score.logprob == pytest.approx(float(row[token]), abs=1e-4)
        best = row.topk(top)
        assert [i for i, _ in score.top] == best.indices.tolist()
        assert [value for _, value in score.top] == pytest.approx(best.values.tolist(), abs=1e-4)


@pytest.mark.parametrize("name", ["stories260k", "qwen3"])
def test_scores_are_those_of_a_forward_alone_and_while_generating(name: str, engine_of: EngineOf) -> None:
    engine = engine_of(name)
    requests = asking(requests_for(engine, PROMPTS))
    hooks = ["resid_post.1", "final_norm", "logits"]
    plain_sink, sink = KeepingSink(), KeepingSink()
    plain = generate(engine, requests_for(engine, PROMPTS), sampling=GREEDY, hooks=hooks, sink=plain_sink)
    made = generate(engine, requests, sampling=GREEDY, hooks=hooks, sink=sink)
    scored = read_texts(engine, requests)
    assert [one.generated_ids for one in scored] == [()] * len(requests)
    for i, (one, other, alone) in enumerate(zip(made, plain, scored, strict=True)):
        wanted = forward(engine, one.prompt_ids)
        assert_right(one, wanted)
        assert_right(alone, wanted)
        # what is generated and captured does not know of it
        assert one.generated_ids == other.generated_ids and other.prompt_logprobs is None
        assert one.logprobs is not None and len(one.logprobs) == len(one.generated_ids)
        for hook in hooks:
            torch.testing.assert_close(sink.rows(i, hook), plain_sink.rows(i, hook), atol=1e-4, rtol=1e-4)
            assert sink.first_row(i, hook) == plain_sink.first_row(i, hook)


def test_only_who_asks_is_scored_and_no_more_logits_are_held_than_said(engine_of: EngineOf) -> None:
    engine = engine_of("qwen3")
    plain = requests_for(engine, PROMPTS)
    asked = asking(plain, top=0)
    generate(engine, plain, sampling=GREEDY)  # the first run holds the packed forward against another
    seen: list[int] = []
    head: Any = engine.model.hf.get_output_embeddings()
    handle = head.register_forward_hook(lambda _, __, output: seen.append(output.shape[1]))
    try:
        made = generate(engine, [plain[0], asked[1], plain[2], asked[3]], sampling=GREEDY)
    finally:
        handle.remove()
    assert [one.prompt_logprobs is not None for one in made] == [False, True, False, True]
    assert made[0].logprobs is None
    assert [score.top for score in scores_of(made[3])] == [()] * (len(plain[3].prompt_ids) - 1)
    assert max(seen) <= 3 + len(PROMPTS)  # besides, one for each token that is chosen
    assert sum(seen) < sum(len(one.prompt_ids) for one in (plain[1], plain[3])) + 2 * 4 * len(PROMPTS)


def test_a_prompt_may_fill_the_context_and_have_one_token(engine_of: EngineOf) -> None:
    engine = engine_of("qwen3")
    context = engine.structure.context_length
    full = tuple(3 + i % 200 for i in range(context))
    requests = [
        Request(key=str(len(ids)), prompt_ids=ids, seed=0, top_logprobs=1, score_prompt=True)
        for ids in (full, (7,))
    ]
    long, short = read_texts(engine, requests)
    assert_right(long, forward(engine, full), top=1)
    assert short.prompt_logprobs == (None,)
    (alone,) = read_texts(engine, requests[1:])
    assert alone.prompt_logprobs == (None,)


def test_steered_prompts_have_the_scores_of_the_steered_model(engine_of: EngineOf) -> None:
    engine = engine_of("qwen3")
    torch.manual_seed(1)
    wide, words = (torch.randn(engine.width_of(hook)) for hook in ("resid_post.0", "logits"))
    edits = (
        Edit(hook="resid_post.0", op="add", vector=wide.numpy()),
        Edit(hook="final_norm", op="scale", coefficient=0.5, positions="prompt"),
        Edit(hook="logits", op="add", vector=words.numpy()),
    )
    plain = asking(requests_for(engine, PROMPTS))
    steered = [replace(request, edits=edits) for request in plain]
    sink = KeepingSink()
    read_texts(engine, steered, hooks=["logits"], sink=sink)
    mixed = [steered[0], plain[1], steered[2], steered[3]]
    for made in (read_texts(engine, mixed), generate(engine, mixed, sampling=GREEDY)):
        for i in (0, 2, 3):
            assert_right(made[i], sink.rows(i, "logits").log_softmax(-1))
        assert_right(made[1], forward(engine, plain[1].prompt_ids))
    (alone,) = read_texts(engine, [steered[0]])
    assert_right(alone, sink.rows(0, "logits").log_softmax(-1))

    broken = [replace(plain[0], edits=(Edit(hook="resid_post.0", op="scale", coefficient=1e38),)), plain[1]]
    bad, good = read_texts(engine, broken)
    assert isinstance(bad.error, InterventionFailed) and bad.prompt_logprobs is None
    assert_right(good, forward(engine, plain[1].prompt_ids))


def test_a_model_that_caps_its_logits_is_scored_by_the_capped_ones(shared: Any) -> None:
    tokenizer = AutoTokenizer.from_pretrained(shared / "models" / "stories260k")
    config = Gemma2Config(**COMMON, head_dim=8, final_logit_softcapping=2.0)
    engine = random_engine(config, tokenizer, "gemma2")
    assert "logits" not in engine.structure.hooks
    requests = asking(requests_for(engine, PROMPTS))
    for made in (read_texts(engine, requests), generate(engine, requests, sampling=GREEDY)):
        for one in made:
            assert_right(one, forward(engine, one.prompt_ids))
    edit = Edit(hook="lm_head.output", op="zero")
    (flat,) = read_texts(engine, [replace(requests[0], edits=(edit,), top_logprobs=0)])
    assert {round(score.logprob, 4) for score in scores_of(flat)} == {
        round(-float(torch.tensor(512).log()), 4)
    }


@pytest.mark.parametrize("name", ["gpt2", "qwen3"])
def test_tokens_after_a_prompt_are_scored_whatever_is_read_beside_it(name: str, engine_of: EngineOf) -> None:
    """Values of one token or several, in pieces, under edits, after a shared prefix, beside generations."""
    engine = engine_of(name)
    width = engine.structure.hooks["resid_pre.1"].width
    row = np.linspace(-1, 1, width, dtype=np.float32)
    edit = Edit(hook="resid_pre.1", op="replace", vector=row, positions=TokenRange(start=70, stop=71))

    def put(tensor: torch.Tensor) -> None:
        tensor[0, 70] = torch.from_numpy(row)

    long = tuple(3 + i % 200 for i in range(130))
    asked = [
        Request(key="one", prompt_ids=(7,), seed=0, max_tokens=0, next_tokens=(5,)),
        Request(key="two", prompt_ids=long, seed=0, max_tokens=0, next_tokens=(300, 17)),
        Request(key="again", prompt_ids=long, seed=0, max_tokens=0, next_tokens=(17,)),
        Request(key="edited", prompt_ids=long, seed=0, max_tokens=0, next_tokens=(300,), edits=(edit,)),
    ]
    others = requests_for(engine, PROMPTS[:2])
    made = generate(engine, [others[0], *asked, others[1]], sampling=GREEDY)
    found = {one.key: one for one in made}
    for request in asked:
        writes = {"resid_pre.1": put} if request.edits else {}
        logits = plain_rows(engine, request.prompt_ids, ["logits"], writes)["logits"][-1]
        wanted = logits.float().log_softmax(-1)[list(request.next_tokens)].tolist()
        one = found[request.key]
        assert one.error is None and one.generated_ids == () and one.next_logprobs is not None
        assert list(one.next_logprobs) == pytest.approx(wanted, abs=1e-4), request.key
    assert found["edited"].next_logprobs != found["two"].next_logprobs
    assert all(found[one.key].next_logprobs is None for one in others)
