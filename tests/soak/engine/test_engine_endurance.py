"""A thousand calls in a row: memory stays flat, nothing stays on the model, failures leave no trace."""

import gc
import threading
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from nnsight.intervention.source import Controller
from transformers import AutoTokenizer, LlamaConfig

from actograph.contract.specs import SamplingSpec
from tests.support.engine_run import generate, random_engine
from tests.support.local_engine import tensor_of
from worker.engine.engine import Engine
from worker.engine.messages import Generation, Request, Rows
from worker.engine.model import memory

pytestmark = pytest.mark.integration

CALLS = 1000
WARM_UP = 300
ALLOWED_GROWTH = 8 << 20  # bytes over the last 700 calls

HOOKS: tuple[tuple[str, ...], ...] = (
    (),
    ("resid_post.0",),
    ("embed", "attn_in.0", "mlp_in.1", "logits"),
    ("resid_pre.1", "final_norm"),
)
SAMPLINGS = (
    SamplingSpec(max_tokens=2),
    SamplingSpec(max_tokens=4, temperature=1.0, seed=3),
    SamplingSpec(max_tokens=3, temperature=0.7, top_p=0.9, top_k=20, seed=4),
)
REQUESTS = (
    Request(key="a", prompt_ids=(5, 9, 33), seed=1),
    Request(key="b", prompt_ids=(17, 4, 210, 99, 6), seed=2),
)


class Interrupted(Exception):
    pass


class Sums:
    """Keeps one number per hook and sample."""

    def __init__(self) -> None:
        self.sums: dict[tuple[int, str], float] = {}

    def write(self, index: int, rows: Mapping[str, Rows]) -> None:
        for hook, chunk in rows.items():
            self.sums[index, hook] = self.sums.get((index, hook), 0.0) + float(
                tensor_of(chunk).double().sum()
            )


def left_on(engine: Engine) -> list[str]:
    """Hooks, and hand-off points of nnsight, that a module still has."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
    found = []
    for path, module in engine.model.hf.named_modules():
        found += [f"{path}.{kind}" for kind in kinds if getattr(module, kind)]
        if isinstance(module.__dict__.get("forward"), Controller):
            found.append(f"{path}.forward")
    return found


def test_a_thousand_calls_with_failures_and_cancels_between(shared: Any) -> None:
    torch.set_num_threads(1)
    config = LlamaConfig(
        hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, vocab_size=512, max_position_embeddings=64, bos_token_id=1,
        eos_token_id=1, pad_token_id=None, tie_word_embeddings=False,
    )  # fmt: skip
    engine = random_engine(config, AutoTokenizer.from_pretrained(shared / "models" / "stories260k"), "tiny")
    assert not left_on(engine)
    threads = threading.active_count()
    expected: dict[tuple[int, int], tuple[list[Generation], dict[tuple[int, str], float]]] = {}
    sizes: list[int] = []
    cut = {"exceptions": 0, "cancels": 0}

    def run(hooks: int, sampling: int, **more: Any) -> tuple[list[Generation], dict[tuple[int, str], float]]:
        sink = Sums()
        made = generate(engine, REQUESTS, sampling=SAMPLINGS[sampling], hooks=HOOKS[hooks], sink=sink, **more)
        return made, sink.sums

    def interrupt(index: int, generated: int) -> bool:
        if generated:
            raise Interrupted
        return False

    for call in range(CALLS):
        hooks, sampling = call % len(HOOKS), call % len(SAMPLINGS)
        if call % 50 == 49:
            with pytest.raises(Interrupted):
                run(hooks, sampling, drop=interrupt)
            cut["exceptions"] += 1
        elif call % 70 == 69:
            made, _ = run(hooks, 1, stop=lambda: True)
            assert [g.finish_reason for g in made] == ["cancelled"] * 2
            cut["cancels"] += 1
        else:
            made, sums = run(hooks, sampling)
            assert all(g.error is None for g in made)
            wanted, wanted_sums = expected.setdefault((hooks, sampling), (made, sums))
            assert made == wanted
            assert sums.keys() == wanted_sums.keys()
            assert all(abs(sums[k] - v) <= 1e-6 * (1 + abs(v)) for k, v in wanted_sums.items())
        if call % 50 in (0, 49):
            assert not left_on(engine)
            assert threading.active_count() == threads
        if (call >= WARM_UP and call % 100 == 0) or call == CALLS - 1:
            gc.collect()
            sizes.append(memory.memory_snapshot()["rss_bytes"])
    assert cut == {"exceptions": 20, "cancels": 12}
    assert len(expected) == len(HOOKS) * len(SAMPLINGS)
    growth = max(sizes) - sizes[0]
    assert growth < ALLOWED_GROWTH, f"{growth:,} bytes more after {CALLS} calls: {sizes}"
