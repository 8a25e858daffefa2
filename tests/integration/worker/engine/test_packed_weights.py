"""Packed linear weights: the same outputs, rows and traces, and a reason where they stay plain."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from actograph.contract.specs import SamplingSpec
from tests.support.engine_run import KeepingSink, generate, requests_for
from worker.engine.engine import Engine
from worker.engine.messages import Edit
from worker.engine.model.load import wrap_model
from worker.engine.packed import weights
from worker.engine.packed.weights import PackedWeight, pack

EngineOf = Callable[[str], Engine]
SMALL: dict[str, Any] = {"vocab_size": 512, "bos_token_id": 1, "eos_token_id": 1}


def random_model(kind: str) -> Any:
    torch.manual_seed(0)
    if kind == "gpt2":  # its layers are Conv1D
        return GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=64, **SMALL)).eval()
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    tied = kind == "tied"
    return LlamaForCausalLM(LlamaConfig(tie_word_embeddings=tied, **shape, **SMALL)).eval()


@pytest.mark.parametrize("kind", ["llama", "tied", "gpt2"])
@torch.no_grad()
def test_a_packed_model_computes_what_the_plain_one_computes(kind: str) -> None:
    plain = random_model(kind)
    packed = copy.deepcopy(plain)
    count = 2 * (4 if kind == "gpt2" else 7) + 1
    assert pack(packed).startswith(f"{count} linear weights are packed")
    for rows, tokens in ((1, 1), (1, 7), (3, 5)):
        ids = torch.randint(2, 512, (rows, tokens))
        torch.testing.assert_close(packed(ids).logits, plain(ids).logits, atol=1e-5, rtol=1e-5)
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), packed.parameters(), strict=True))
    assert pack(packed) == "linear weights stay plain: the model has no plain linear layer"


def test_traces_read_and_edit_a_packed_model(engine_of: EngineOf) -> None:
    plain = engine_of("llama")
    hf: Any = copy.deepcopy(plain.model.hf)
    assert "packed" in pack(hf)
    packed = Engine(wrap_model(hf, plain.model.tokenizer, name="packed"))
    assert packed.structure.proofs == plain.structure.proofs
    edit = Edit(hook="mlp_out.0", op="add", vector=torch.ones(plain.width_of("mlp_out.0")).numpy())
    hooks = list(plain.structure.hooks)
    answers, sinks = [], []
    for engine in (plain, packed):
        requests = [replace(one, edits=(edit,)) for one in requests_for(engine, ["The cat", "Tom has 34"])]
        sinks.append(KeepingSink())
        made = generate(engine, requests, sampling=SamplingSpec(max_tokens=12), hooks=hooks, sink=sinks[-1])
        answers.append([one.generated_ids for one in made])
    assert answers[0] == answers[1]
    for sample in range(2):
        for hook in hooks:
            expected, rows = (sink.rows(sample, hook) for sink in sinks)
            torch.testing.assert_close(rows, expected, atol=1e-4, rtol=1e-4)


def test_weights_stay_plain_for_a_reason(monkeypatch: pytest.MonkeyPatch, subtests: Any) -> None:
    with subtests.test("dtype"):
        model = nn.Linear(8, 8, dtype=torch.float64)
        assert pack(model).startswith("linear weights stay plain: ")
        assert type(model.weight) is nn.Parameter
    with subtests.test("another device"):
        assert "weights on meta" in pack(nn.Linear(8, 8, device="meta"))
    with subtests.test("memory"), monkeypatch.context() as patch:
        patch.setattr(weights, "available_bytes", lambda device: 300)
        model = nn.Linear(8, 8)
        assert "of free memory" in pack(model)
        assert type(model.weight) is nn.Parameter
    with subtests.test("wrong outputs"), monkeypatch.context() as patch:
        patch.setattr(weights, "_linear", lambda given, packed, bias: given * 2)
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
        assert "differ by" in pack(model)
        assert not any(isinstance(p, PackedWeight) for p in model.parameters())
