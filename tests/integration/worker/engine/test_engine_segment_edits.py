"""Interventions on segments, strides and listed tokens: exactly the rows that the session names are changed.

The edit sits in the last layer, so that no other row's keys or values can carry it: a plain
forward over the same tokens gives the rows as they were without it.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, Qwen3Config

from actograph.contract.row_selection import Stride
from actograph.contract.specs import SamplingSpec
from tests.support.architectures import COMMON
from tests.support.engine_run import KeepingSink, generate, random_engine, reference, requests_for
from tests.support.one_turn import due_tokens
from worker.engine.engine import Engine
from worker.engine.messages import Edit, Generation, Request
from worker.sample.conversation import Conversation
from worker.sample.token_rules import rule_of
from worker.text.segments import Markup, segments

pytestmark = pytest.mark.integration

#: they end inside a thought, behind one, and without any
PROMPTS = [
    "12+13?<think>\n",
    "Tom has 34 books and Mia has 57.<think>\n9+2=11</think>",
    "The cat",
    "1+1<think>",
]
GREEDY = SamplingSpec(max_tokens=40)
SAMPLED = SamplingSpec(max_tokens=40, temperature=1.0)
EVERY: list[Any] = [
    "prompt", "think", "answer", ["think", "answer"], ["prompt", "think"], "tool_call", ["tool_result"],
    Stride(stride=3), [0, -1, 20, 31],
]  # fmt: skip


@pytest.fixture(scope="module")
def engine_for(engine_of: Callable[[str], Engine], shared: Any) -> Any:
    made: dict[str, Engine] = {}

    def make(name: str) -> Engine:
        if name == "tiny-qwen3":
            return engine_of(name)
        if name not in made:
            # the tokenizer whose marks are single tokens, so that random weights write them now and then
            tokenizer = AutoTokenizer.from_pretrained(shared / "models" / "tiny-qwen3")
            config = Qwen3Config(**COMMON | {"vocab_size": len(tokenizer)}, head_dim=8)
            engine = random_engine(config, tokenizer, name)
            marks = [tokenizer.convert_tokens_to_ids(m) for m in ("<think>", "</think>", "<tool_call>")]
            with torch.no_grad():  # or so rarely that no test would see one
                head = engine.model.hf.get_output_embeddings().weight
                head[marks] = head[marks] * 4
            made[name] = engine
        return made[name]

    return make


def steered(
    engine: Engine, requests: Sequence[Request], positions: Any, markup: Markup
) -> tuple[list[Request], torch.Tensor, str]:
    layer = engine.structure.num_layers - 1
    generator = torch.Generator().manual_seed(4)
    vector = torch.randn(engine.structure.hidden_size, generator=generator)
    conversation = Conversation(markup)
    steered = []
    for request in requests:
        begun = conversation.begin(request.prompt_ids)
        rule = rule_of(positions, conversation, begun, markup)
        edit = Edit(hook=f"mlp_out.{layer}", op="add", vector=vector.numpy(), rule=rule)
        steered.append(replace(request, edits=(edit,)))
    return steered, vector, f"resid_post.{layer}"


def moved(engine: Engine, generation: Generation, rows: torch.Tensor, hook: str, reference: Any) -> set[int]:
    """Tokens whose row is not what a plain forward over the same tokens gives."""
    apart = (rows - reference(engine, generation, [hook])[hook]).abs().amax(-1)
    return set((apart > 0.05).nonzero().flatten().tolist())


@pytest.mark.covering(4)
@pytest.mark.parametrize("name", ["tiny-qwen3", "random"])
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("positions", EVERY, ids=str)
def test_exactly_the_rows_that_the_manifest_names_are_changed(
    name: str, positions: Any, sampling: SamplingSpec, engine_for: Any
) -> None:
    engine = engine_for(name)
    markup = Markup(engine.model.tokenizer)
    requests, vector, hook = steered(engine, requests_for(engine, PROMPTS, seed=5), positions, markup)
    sink = KeepingSink()
    made = generate(engine, requests, sampling=sampling, hooks=[hook], sink=sink)
    for i, generation in enumerate(made):
        prompt, count = len(generation.prompt_ids), len(generation.generated_ids)
        wanted = positions
        if isinstance(positions, list) and isinstance(positions[0], int):
            # an edit of a token that is not there is no edit; a capture of one would fail
            wanted = [t for t in positions if isinstance(t, int) and -prompt <= t < prompt + count - 1]
        due = set(due_tokens(generation, wanted, markup))
        rows = sink.rows(i, hook)
        assert moved(engine, generation, rows, hook, reference) == due
        if due:
            plain = reference(engine, generation, [hook])[hook]
            places = sorted(due)
            assert torch.allclose(rows[places] - plain[places], vector.expand(len(due), -1), atol=2e-3)
        # alone: the same tokens, and the same rows
        alone = KeepingSink()
        assert generate(engine, [requests[i]], sampling=sampling, hooks=[hook], sink=alone) == [generation]
        assert torch.allclose(alone.rows(0, hook), rows, atol=1e-4)


@pytest.mark.parametrize("name", ["tiny-qwen3", "random"])
def test_the_samples_have_thoughts_and_answers_of_their_own(name: str, engine_for: Any) -> None:
    """Or the test above would prove little: segments begin and end inside the generation."""
    engine = engine_for(name)
    markup = Markup(engine.model.tokenizer)
    requests, _, _ = steered(engine, requests_for(engine, PROMPTS, seed=5), "think", markup)
    for sampling in (GREEDY, SAMPLED):
        made = generate(engine, requests, sampling=sampling)
        runs = [[s.name for s in segments(markup, g.prompt_ids, g.generated_ids)] for g in made]
        assert any("think" in names and "answer" in names for names in runs), runs


def test_memory_that_runs_out_midway_leaves_the_edits_right(engine_for: Any) -> None:
    """The pass runs again in halves: what was followed of the first attempt must not count twice."""
    engine = engine_for("tiny-qwen3")
    markup = Markup(engine.model.tokenizer)
    requests, _, hook = steered(engine, requests_for(engine, PROMPTS, seed=5), "think", markup)
    want, sink, due = KeepingSink(), KeepingSink(), [9]
    made = generate(engine, requests, sampling=SAMPLED, hooks=[hook], sink=want)

    def fail(*_: Any) -> None:
        due[0] -= 1
        if not due[0]:
            raise torch.OutOfMemoryError("CUDA out of memory")

    handle = engine.model.hf.get_submodule("model.layers.1.mlp").register_forward_pre_hook(fail)
    try:
        again = generate(engine, requests, sampling=SAMPLED, hooks=[hook], sink=sink)
    finally:
        handle.remove()
    assert due[0] <= 0 and again == made
    for i in range(len(requests)):
        assert torch.allclose(sink.rows(i, hook), want.rows(i, hook), atol=1e-4)
