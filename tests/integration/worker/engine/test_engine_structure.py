"""Structure discovery on models as they are loaded, and what it leaves behind."""

import gc
import json
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import GPT2Config, PreTrainedTokenizerBase

from actograph.contract.errors import ModelRefused
from actograph.contract.specs import SamplingSpec
from tests.support.engine_run import KeepingSink, generate, random_engine, requests_for
from worker.engine.engine import Engine
from worker.engine.model.devices import resolve_device
from worker.engine.model.load import load_model, wrap_model

pytestmark = pytest.mark.integration

GPT2 = GPT2Config(
    n_embd=32, n_layer=2, n_head=4, n_positions=128, vocab_size=512, bos_token_id=1, eos_token_id=1
)


@pytest.fixture(scope="module")
def tokenizer(engine_of: Callable[[str], Engine]) -> PreTrainedTokenizerBase:
    return engine_of("stories260k").model.tokenizer


def test_one_copy_of_the_weights_and_every_wrapper_of_it_works(tokenizer: PreTrainedTokenizerBase) -> None:
    first = random_engine(GPT2, tokenizer, "first")
    second = Engine(wrap_model(first.model.hf, tokenizer, name="second"))
    assert second.model.hf is first.model.hf
    requests = requests_for(first, ["Once upon a time"])
    rows = []
    for engine in (first, second, Engine(first.model), first):
        sink = KeepingSink()
        made = generate(
            engine, requests, sampling=SamplingSpec(max_tokens=5), hooks=["resid_mid.1"], sink=sink
        )
        assert made[0].error is None
        rows.append(sink.rows(0, "resid_mid.1"))
    assert all(torch.equal(r, rows[0]) for r in rows)


@pytest.mark.soak
def test_a_dropped_model_gives_its_memory_back(tokenizer: PreTrainedTokenizerBase) -> None:
    engine = random_engine(GPT2, tokenizer, "passing")
    generate(
        engine,
        requests_for(engine, ["a"]),
        sampling=SamplingSpec(max_tokens=2),
        hooks=["embed"],
        sink=KeepingSink(),
    )
    weights = weakref.ref(next(engine.model.hf.parameters()))
    del engine
    gc.collect()
    assert weights() is None


def test_what_cannot_be_loaded_is_refused_with_advice(tmp_path: Any) -> None:
    with pytest.raises(ModelRefused, match=r"config\.json"):
        load_model(str(tmp_path), device="cpu")
    with pytest.raises(ModelRefused, match="device"):
        resolve_device("gpu7")
    if not torch.cuda.is_available():
        with pytest.raises(ModelRefused, match="no GPU"):
            resolve_device("cuda:0")


def test_code_of_a_repository_is_never_run(tmp_path: Any) -> None:
    config = {
        "model_type": "own",
        "auto_map": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "own.py").write_text("raise SystemExit('this must not be run')")
    with pytest.raises(ModelRefused, match="code from a repository is never run"):
        load_model(str(tmp_path), device="cpu")


def test_nothing_is_added_to_every_object(engine_of: Callable[[str], Engine]) -> None:
    engine_of("llama")
    assert not hasattr(object(), "save")
