"""Runs that repeat: the same bits at any place, beside any others, in any order, after a restart."""

import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from actograph.contract.errors import ModelRefused
from actograph.contract.specs import SamplingSpec
from tests.support.architectures import ARCHITECTURES
from tests.support.checkpoints import save_random
from tests.support.local_engine import ListedRun, LocalEngine
from worker.engine.engine import Engine
from worker.engine.messages import Capture, Edit, Request, Rows, RunOptions
from worker.engine.model.load import load_model
from worker.engine.packed.weights import pack
from worker.engine.repeatable import prove

pytestmark = pytest.mark.integration

OPTIONS = RunOptions(slots=6, repeatable=True, shard_bytes=1 << 12)


def made(folder: Path, kind: str, dtype: Any) -> Engine:
    save_random(ARCHITECTURES[kind].config(), folder)
    model = load_model(str(folder), dtype=dtype, device="cpu")
    pack(model.hf)
    return Engine(model)


def members(engine: Engine) -> list[Request]:
    """Requests that differ in one thing each; some have a beginning in common, of more than one block."""
    begin = tuple((5 * i) % 500 + 4 for i in range(70))
    base: dict[str, Any] = {
        "prompt_ids": begin,
        "seed": 3,
        "sampling": SamplingSpec(max_tokens=12, temperature=0.9, top_p=0.9, ignore_eos=True),
        "capture": Capture(hooks=tuple(engine.structure.hooks)),
    }
    changes: dict[str, dict[str, Any]] = {
        "plain": {},
        "the same beginning": {"prompt_ids": (*begin, 7, 8)},
        "greedy": {"sampling": SamplingSpec(max_tokens=12, temperature=0.0, ignore_eos=True)},
        "short": {"prompt_ids": begin[3:9]},
        "one token": {"prompt_ids": begin[:1]},
        "long": {"prompt_ids": begin[::-1] * 2},
        "only read": {"max_tokens": 0},
        "scored": {"top_logprobs": 2, "score_prompt": True},
        "steered": {"edits": (Edit(hook="resid_post.0", op="scale", coefficient=0.5),)},
        "a chat": {"priority": True},
    }
    return [Request(key=name, **base | change) for name, change in changes.items()]


def bits(engine: Engine, requests: list[Request], options: RunOptions) -> dict[str, Any]:
    """Tokens, probabilities and the bytes of rows, by request."""
    rows: dict[tuple[str, str], bytes] = {}

    def write(key: str, chunks: Mapping[str, Rows]) -> None:
        for hook, chunk in chunks.items():
            rows[key, hook] = rows.get((key, hook), b"") + b"".join(p.tobytes() for p in chunk.pieces)

    answers = ListedRun(requests, write).through(LocalEngine(engine, slots=options.slots), options)
    found: dict[str, Any] = {}
    for one in answers:
        assert one.error is None, one.error
        own = {hook: raw for (key, hook), raw in rows.items() if key == one.key}
        found[one.key] = (one.generated_ids, one.logprobs, one.prompt_logprobs, own)
    return found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bits_do_not_depend_on_neighbours_places_or_order(tmp_path: Path, dtype: str) -> None:
    engine = made(tmp_path, "qwen3", dtype)
    prove(engine, OPTIONS)
    asked = members(engine)
    together = bits(engine, asked, OPTIONS)
    for request in asked:
        assert bits(engine, [request], OPTIONS)[request.key] == together[request.key], request.key
    for seed in range(2):
        mixed = asked + [replace(one, key=f"{one.key} again") for one in asked]
        random.Random(seed).shuffle(mixed)
        for key, found in bits(engine, mixed, replace(OPTIONS, slots=3 + 8 * seed)).items():
            assert found == together[key.removesuffix(" again")], key


def test_without_it_bits_depend_on_neighbours(tmp_path: Path) -> None:
    """Else the tests above would show nothing."""
    engine, options = made(tmp_path, "qwen3", "float32"), replace(OPTIONS, repeatable=False)
    asked = members(engine)
    together = bits(engine, asked, options)
    assert any(bits(engine, [one], options)[one.key] != together[one.key] for one in asked)


def test_a_model_whose_rows_depend_on_others_is_refused(tmp_path: Path) -> None:
    engine = made(tmp_path, "llama", "float32")

    def mixed(_: Any, __: Any, output: torch.Tensor) -> torch.Tensor:
        return output + 1e-6 * output.abs().amax(1, keepdim=True)

    handle = engine.model.hf.get_submodule("model.layers.1.mlp").register_forward_hook(mixed)
    with pytest.raises(ModelRefused, match=r"its numbers depend on what runs beside a request"):
        prove(engine, OPTIONS)
    handle.remove()
    prove(engine, OPTIONS)
