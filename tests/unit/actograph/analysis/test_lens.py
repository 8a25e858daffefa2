"""The lens beside transformers: RMS norm, layer norm with bias, tied and untied unembeddings."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actograph.analysis.checkpoint import Checkpoint
from actograph.analysis.lens import attribution, logit_lens
from actograph.contract.errors import InvalidRequest

pytestmark = pytest.mark.integration

WIDTH, VOCABULARY = 16, 50


def config(family: str) -> Any:
    import transformers

    if family == "gpt2":
        return transformers.GPT2Config(n_embd=WIDTH, n_layer=2, n_head=2, vocab_size=VOCABULARY)
    kinds = {"llama": transformers.LlamaConfig, "gemma2": transformers.Gemma2Config}
    return kinds[family](
        hidden_size=WIDTH, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, head_dim=8,
        num_key_value_heads=2, vocab_size=VOCABULARY, tie_word_embeddings=family == "gemma2",
    )  # fmt: skip


@pytest.fixture(params=["llama", "gpt2", "gemma2"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Any, Path]:
    """A model with random weights, also in its norms, and its folder."""
    import torch
    import transformers

    torch.manual_seed(0)
    automatic: Any = transformers.AutoModelForCausalLM
    built = automatic.from_config(config(request.param)).eval()
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    built.save_pretrained(tmp_path)
    return built, tmp_path


def run(model: Any) -> tuple[Any, Any, Any]:
    """Logits, the last residual rows, and the parts that add up to them."""
    import torch

    body = getattr(model, "model", None) or model.transformer
    norm = body.norm if hasattr(body, "norm") else body.ln_f
    kept: list[Any] = []
    hook = norm.register_forward_pre_hook(lambda _, inputs: kept.append(inputs[0][0].numpy()))
    with torch.no_grad():
        found = model(torch.arange(3, 9)[None], output_hidden_states=True)
    hook.remove()
    states = [state[0].numpy() for state in found.hidden_states[:-1]] + [kept[0]]
    parts = np.stack([states[0], *(after - before for before, after in pairwise(states))])
    return found.logits[0].double().numpy(), kept[0], parts


def test_the_last_layer_reads_as_the_model_does(model: tuple[Any, Path]) -> None:
    built, folder = model
    logits, rows, _ = run(built)
    for block in (7, 1000):
        found = logit_lens(rows, Checkpoint(folder), top=VOCABULARY, block=block)
        expected = np.take_along_axis(logits, found.tokens, axis=1)
        assert found.logits == pytest.approx(expected, abs=1e-4)
        assert np.exp(found.log_probabilities).sum(axis=1) == pytest.approx(1)
        assert (found.tokens[:, 0] == logits.argmax(axis=1)).all()
        few = logit_lens(rows, Checkpoint(folder), top=3, block=block)
        assert (few.tokens == found.tokens[:, :3]).all()


def test_contributions_add_up_to_the_difference_of_two_logits(model: tuple[Any, Path]) -> None:
    built, folder = model
    checkpoint = Checkpoint(folder)
    logits, _, parts = run(built)
    if checkpoint.logit_cap is not None:
        logits = np.arctanh(logits / checkpoint.logit_cap) * checkpoint.logit_cap
    found = attribution(parts, checkpoint, 4, against=9)
    directions = checkpoint.unembedding.rows(4, 5)[0] - checkpoint.unembedding.rows(9, 10)[0]
    whole = found.sum(axis=0) + float(checkpoint.norm.bias @ directions)
    assert whole == pytest.approx(logits[:, 4] - logits[:, 9], abs=1e-3)


def test_unusable_checkpoints_and_rows_are_refused(model: tuple[Any, Path], tmp_path: Path) -> None:
    checkpoint = Checkpoint(model[1])
    with pytest.raises(InvalidRequest, match=r"rows must be \[n, 16\]"):
        logit_lens(np.zeros((2, 5)), checkpoint)
    with pytest.raises(InvalidRequest, match="token 50 is not in the vocabulary"):
        attribution(np.ones((2, 3, WIDTH)), checkpoint, 50)
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(InvalidRequest, match=r"config\.json cannot be read"):
        Checkpoint(empty)
    (empty / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(InvalidRequest, match=r"no \.safetensors files"):
        Checkpoint(empty)
