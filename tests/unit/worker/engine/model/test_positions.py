"""Models whose positions follow the length of a text: equal to `generate`, or refused with the reason."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoTokenizer

from actograph.contract.errors import InvalidRequest
from storage.queue.leases import LeasedSample
from tests.support.architectures import COMMON, random_model
from tests.support.plain_forward import plain_rows
from tests.support.stream_run import StreamRun, ask, prompts
from tests.support.structures import model_structure
from worker.engine.forwards import Forwards
from worker.engine.messages import Capture
from worker.engine.model.positions import length_dependent, position_switch
from worker.engine.structure.structure import discover
from worker.runners.chat import ChatRunner

SWITCH = 64
_ROPE: dict[str, Any] = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "original_max_position_embeddings": SWITCH,
    "factor": 2.5,
    "short_factor": [1.0, 1.0, 1.0, 1.0],
    "long_factor": [1.0, 3.0, 9.0, 27.0],
}
_SCALES = {"short_mscale": 1.0, "long_mscale": 1.4}
_PLAIN = COMMON | {"pad_token_id": 0}
SWITCHING: dict[str, Callable[[], Any]] = {
    "phi3": lambda: AutoConfig.for_model(
        "phi3",
        **_PLAIN,
        original_max_position_embeddings=SWITCH,
        rope_parameters=_ROPE | {"partial_rotary_factor": 1.0},
    ),
    "phimoe": lambda: AutoConfig.for_model(
        "phimoe",
        **_PLAIN,
        num_local_experts=4,
        num_experts_per_tok=2,
        router_jitter_noise=0.0,
        rope_parameters=_ROPE | _SCALES,
    ),
    "llama": lambda: AutoConfig.for_model("llama", **_PLAIN, rope_parameters=_ROPE),
}
PLAN = Capture(hooks=("resid_post.0", "resid_post.2"))


@pytest.mark.filterwarnings("ignore:.*rope.*")
@pytest.mark.parametrize("name", SWITCHING)
def test_a_request_over_the_switch_is_refused_and_the_others_equal_generate(shared: Path, name: str) -> None:
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(shared / "models" / "stories260k")
    hooks = discover(random_model(SWITCHING[name](), tokenizer, name))
    assert hooks.structure.position_switch == SWITCH
    assert Forwards(hooks).reason == "its positions depend on the longest text of a batch (longrope)"
    lengths = (20, 63, SWITCH, SWITCH + 1, 100)
    items = [
        ask(f"{length} + {most}", prompt, most, capture=PLAN)
        for length, prompt in zip(lengths, prompts(lengths, vocabulary=500), strict=True)
        for most in (0, 1, 2, 3, SWITCH - 20 + 1, SWITCH - 20 + 2)
        if length + most <= 160
    ]
    for order in (items, items[::-1]):  # several at once, on both sides
        run = StreamRun(order).run(hooks, "traced", most=4)
        crossing = {
            item.key for item in items if item.max_tokens and len(item.prompt_ids) <= SWITCH < item.most_run
        }
        assert crossing == set(run.errors) == {"20 + 46", "63 + 3", "63 + 45", "63 + 46", "64 + 2", "64 + 3",
                                               "64 + 45", "64 + 46"}  # fmt: skip
        for item in items:
            if item.key in crossing:
                error = run.errors[item.key]
                assert isinstance(
                    error, InvalidRequest
                ) and f"lower max_tokens to {65 - len(item.prompt_ids)}" in (error.message)
                continue
            ids = item.prompt_ids + run.ids(item.key)
            if item.max_tokens:
                given = torch.tensor([item.prompt_ids])
                hf: Any = hooks.model.hf
                due = hf.generate(
                    given,
                    attention_mask=torch.ones_like(given),
                    max_new_tokens=item.max_tokens,
                    do_sample=False,
                )
                assert ids == tuple(due[0].tolist()), item.key
                ids = ids[:-1]
            for hook, rows in plain_rows(hooks, ids, PLAN.hooks).items():
                torch.testing.assert_close(run.rows(item.key, hook), rows, atol=1e-4, rtol=1e-3)


def test_a_chat_that_names_no_length_ends_before_the_switch(shared: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(shared / "models" / "stories260k")
    runner = ChatRunner(tokenizer, model_structure({}, context_length=160, position_switch=SWITCH))
    most = []
    for length in (20, SWITCH, SWITCH + 1, 150):
        lease = LeasedSample(
            id="a", job_id="j", sample_index=0, condition="baseline", epoch=0, seed=0, token=1,
            input={"prompt_token_ids": [5] * length, "default_max_tokens": 80},
        )  # fmt: skip
        most.append(runner.prompt(lease).max_tokens)
    assert most == [SWITCH - 20 + 1, 1, 80, 10]


def test_schemes_that_follow_the_length(subtests: pytest.Subtests) -> None:
    """A scheme that nobody knows may do so."""
    nested = {"sliding_attention": {"rope_type": "default"}, "full_attention": _ROPE}
    for rope, kind, switch in (
        (None, None, None),
        ({"rope_type": "default"}, None, None),
        ({"rope_type": "linear", "factor": 2.0}, None, None),
        ({"rope_type": "yarn", "original_max_position_embeddings": 64}, None, None),
        ({"rope_type": "llama3", "original_max_position_embeddings": 64}, None, None),
        ({"rope_type": "dynamic", "original_max_position_embeddings": 64}, "dynamic", 160),
        (_ROPE, "longrope", 64),
        (nested, "longrope", 64),
        ({"rope_type": "new", "original_max_position_embeddings": 80}, "new", 80),
        ({"rope_type": "new"}, "new", 160),
    ):
        with subtests.test(rope=rope):
            config = SimpleNamespace(rope_parameters=rope, max_position_embeddings=160)
            assert (length_dependent(config), position_switch(config)) == (kind, switch)
