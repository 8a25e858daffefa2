"""Limits of what a checkpoint's generation config may change."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from transformers import GenerationConfig

from actograph.contract.specs import SamplingSpec
from tests.support.engine_run import KeepingSink, generate, requests_for
from worker.engine.engine import Engine

pytestmark = pytest.mark.integration

PROMPTS = ["Once upon a time there was a little girl who had 12 apples.", "a", "The cat and the dog", "One"]
Config: Any = GenerationConfig


@pytest.fixture
def stories(engine_of: Callable[[str], Engine]) -> Iterator[Engine]:
    """An engine whose generation config a test may replace."""
    engine = engine_of("stories260k")
    before = engine.model.hf.generation_config
    yield engine
    engine.model.hf.generation_config = before


#: what a checkpoint may say, and no step may do
ASKED: list[dict[str, Any]] = [
    {"guidance_scale": 1.5},  # a second forward without the prompt in every step
    {"penalty_alpha": 0.6, "top_k": 4},
    {"dola_layers": "low"},
    {"assistant_early_exit": 1},
    {"prompt_lookup_num_tokens": 3},
    {"num_beams": 4},
    {"stop_strings": ["a"]},
    {"max_time": 1e-6},
    {"token_healing": True},
    {"use_cache": False},
    {"cache_implementation": "static"},
    {"return_dict_in_generate": True, "output_scores": True},
]


def test_it_cannot_change_what_a_step_is(stories: Engine, subtests: pytest.Subtests) -> None:
    engine = stories
    requests, hooks = requests_for(engine, PROMPTS[:2]), ["resid_pre.1", "mlp_out.0", "logits"]
    plain, sampling = KeepingSink(), SamplingSpec(max_tokens=6)
    expected = generate(engine, requests, sampling=sampling, hooks=hooks, sink=plain)
    for asked in ASKED:
        with subtests.test(asked=asked):
            engine.model.hf.generation_config = Config(eos_token_id=[], **asked)
            odd = KeepingSink()
            made = generate(engine, requests, sampling=sampling, hooks=hooks, sink=odd)
            assert [g.generated_ids for g in made] == [g.generated_ids for g in expected]
            assert [g.finish_reason for g in made] == [g.finish_reason for g in expected]
            for i in range(len(requests)):
                for hook in hooks:
                    assert torch.equal(odd.rows(i, hook), plain.rows(i, hook)), hook
