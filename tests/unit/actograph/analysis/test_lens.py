"""The lens and attribution beside transformers: every architecture's own norm, head, factors and caps."""

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from transformers import (
    Cohere2Config,
    FalconConfig,
    Gemma2Config,
    GPTJConfig,
    GraniteConfig,
    Llama4TextConfig,
    LlamaConfig,
    NemotronConfig,
)

from actograph.analysis.checkpoint import Checkpoint
from actograph.analysis.lens import attribution, constant, logit_lens
from actograph.contract.errors import InvalidRequest
from tests.support.architectures import ARCHITECTURES, COMMON, IDS
from tests.support.checkpoints import residual_rows, save_random

pytestmark = pytest.mark.integration

WIDTH, VOCABULARY, LAYERS = 32, 512, 3
HEAD = {"head_dim": 8}
#: beside the parity suite: heads with a bias, norms with 1 + w, factors and caps, tied heads
FURTHER: dict[str, Callable[[], Any]] = {
    "gptj": lambda: GPTJConfig(
        **IDS, n_embd=32, n_layer=3, n_head=4, n_positions=160, rotary_dim=4, tie_word_embeddings=False
    ),
    "nemotron": lambda: NemotronConfig(**COMMON, **HEAD),
    "granite": lambda: GraniteConfig(**COMMON, logits_scaling=8.0, residual_multiplier=0.22),
    "cohere2": lambda: Cohere2Config(**COMMON, logit_scale=0.25, sliding_window=12),
    "capped_gemma2": lambda: Gemma2Config(**COMMON, **HEAD, sliding_window=12, final_logit_softcapping=3.0),
    "llama4": lambda: Llama4TextConfig(**COMMON, **HEAD, intermediate_size_mlp=48, num_local_experts=3),
    "tied_llama": lambda: LlamaConfig(**COMMON | {"tie_word_embeddings": True}),
    "tied_falcon": lambda: FalconConfig(
        **IDS, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, tie_word_embeddings=True
    ),
}
CONFIGS: dict[str, Callable[[], Any]] = {name: one.config for name, one in ARCHITECTURES.items()} | FURTHER
TOKENS = [(7 * place + 3) % 500 for place in range(20)]


def uncapped(logits: Any, config: Any) -> Any:
    cap = getattr(config, "final_logit_softcapping", None)
    return logits if cap is None else np.arctanh(logits / cap) * cap


@pytest.mark.parametrize("architecture", CONFIGS)
def test_the_last_layer_reads_as_the_model_does_and_contributions_add_up(
    architecture: str, tmp_path: Path
) -> None:
    config = CONFIGS[architecture]()
    model = save_random(config, tmp_path)
    rows, logits = residual_rows(model, TOKENS)
    checkpoint = Checkpoint(tmp_path)
    assert (checkpoint.layers, checkpoint.width, checkpoint.vocabulary) == (LAYERS, WIDTH, VOCABULARY)
    np.testing.assert_allclose(checkpoint.logits(rows[-1]), logits, atol=1e-4)
    logs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    for block in (100, 1000):
        found = logit_lens(rows[-1], checkpoint, top=VOCABULARY, targets=np.array(TOKENS), block=block)
        np.testing.assert_allclose(found.logits, np.take_along_axis(logits, found.tokens, axis=1), atol=1e-4)
        np.testing.assert_allclose(
            found.log_probabilities, np.take_along_axis(logs, found.tokens, axis=1), atol=1e-4
        )
        np.testing.assert_allclose(
            found.target_log_probabilities, logs[np.arange(len(TOKENS)), TOKENS], atol=1e-4
        )
        few = logit_lens(rows[-1], checkpoint, top=3, block=block)
        assert (few.tokens == found.tokens[:, :3]).all()
    parts = np.stack([rows[0], *(after.astype(float) - before for before, after in pairwise(rows))])
    whole = uncapped(logits, config)
    for token, against in ((4, None), (4, 9), (np.array(TOKENS), 9)):
        values = attribution(parts, checkpoint, token, against=against).sum(axis=0)
        values = values + constant(checkpoint, token, against=against)
        due = whole[np.arange(len(TOKENS)), token] - (0 if against is None else whole[:, against])
        np.testing.assert_allclose(values, due, atol=2e-4 * np.abs(whole).max())


def test_a_part_is_mapped_at_the_scale_of_the_whole(tmp_path: Path) -> None:
    """By the formulas of an RMS norm and of a layer norm with a bias."""
    for name in ("llama", "gpt2"):
        model = save_random(CONFIGS[name](), tmp_path / name)
        norm = model.get_decoder().norm if name == "llama" else model.get_decoder().ln_f
        epsilon = norm.variance_epsilon if name == "llama" else norm.eps
        weight = norm.weight.detach().double().numpy()
        parts = np.random.default_rng(0).normal(size=(3, 5, WIDTH)) * np.array([1, 30, 0.01])[:, None, None]
        whole = parts.sum(axis=0)
        if name == "gpt2":
            whole, centred = whole - whole.mean(axis=-1, keepdims=True), parts.mean(axis=-1, keepdims=True)
            parts_due = parts - centred
        else:
            parts_due = parts
        scale = np.sqrt(np.square(whole).mean(axis=-1, keepdims=True) + epsilon)
        found = Checkpoint(tmp_path / name).linear_parts(parts)
        np.testing.assert_allclose(found, parts_due / scale * weight, rtol=1e-5, atol=1e-6)


def test_a_head_of_its_own_is_read_beside_a_config_that_says_tied(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    save_random(FURTHER["tied_llama"](), tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    shape = tensors["model.embed_tokens.weight"].shape
    tensors["lm_head.weight"] = np.random.default_rng(1).normal(size=shape).astype(np.float32) * 0.2
    save_file(tensors, path, metadata={"format": "pt"})
    rows, logits = residual_rows(AutoModelForCausalLM.from_pretrained(tmp_path).eval(), TOKENS)
    np.testing.assert_allclose(Checkpoint(tmp_path).logits(rows[-1]), logits, atol=1e-4)


def test_a_bfloat16_head_is_read_in_float32(tmp_path: Path) -> None:
    model = save_random(CONFIGS["llama"](), tmp_path)
    model.bfloat16().save_pretrained(tmp_path)
    rows, logits = residual_rows(model.float(), TOKENS)  # the rounded weights
    np.testing.assert_allclose(Checkpoint(tmp_path).logits(rows[-1]), logits, atol=1e-4)


def test_unusable_checkpoints_and_rows_are_refused(tmp_path: Path, subtests: pytest.Subtests) -> None:
    folder = tmp_path / "good"
    save_random(CONFIGS["llama"](), folder)
    checkpoint = Checkpoint(folder)
    with pytest.raises(InvalidRequest, match=r"rows must be \[n, 32\]"):
        logit_lens(np.zeros((2, 5)), checkpoint)
    with pytest.raises(InvalidRequest, match="token 512 is not in the vocabulary"):
        attribution(np.ones((2, 3, WIDTH)), checkpoint, 512)
    with pytest.raises(InvalidRequest, match="token 512 is not in the vocabulary"):
        logit_lens(np.ones((3, WIDTH)), checkpoint, targets=np.array([1, -1, 512]))
    weights = load_file(folder / "model.safetensors")
    llama = json.loads((folder / "config.json").read_text())
    unknown = {"model_type": "own", "auto_map": {"AutoConfig": "own.Config"}}
    without_norm = {name: array for name, array in weights.items() if name != "model.norm.weight"}
    cases: list[tuple[str, Any, Any, str]] = [
        ("no config", None, weights, r"config\.json cannot be read"),
        ("no weights", llama, None, r"no \.safetensors files"),
        ("code of its own", unknown, weights, "code from a repository is never run"),
        ("no language model", {"model_type": "vit"}, weights, "no language model"),
        ("no norm", llama, without_norm, r"lack model\.norm\.weight"),
        ("another width", llama | {"hidden_size": 16}, weights, "cannot be run by itself"),
    ]
    for title, config, tensors, says in cases:
        with subtests.test(title):
            bad = tmp_path / title
            bad.mkdir()
            if config is not None:
                (bad / "config.json").write_text(json.dumps(config))
            if tensors is not None:
                save_file(tensors, bad / "model.safetensors", metadata={"format": "pt"})
            with pytest.raises(InvalidRequest, match=says):
                Checkpoint(bad)


def test_a_model_whose_logits_need_more_than_the_last_layer_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    from transformers.models.llama.modeling_llama import LlamaForCausalLM, LlamaModel

    save_random(CONFIGS["llama"](), tmp_path)
    plain, headed = LlamaModel.forward, LlamaForCausalLM.forward

    def with_embedding(self: Any, *, inputs_embeds: Any, **options: Any) -> Any:
        found = plain(self, inputs_embeds=inputs_embeds, **options)
        found.last_hidden_state = found.last_hidden_state + inputs_embeds
        return found

    def normalised(self: Any, **options: Any) -> Any:
        found = headed(self, **options)
        found.logits = found.logits.softmax(-1)
        return found

    def twice(self: Any, **options: Any) -> Any:
        headed(self, **options)
        return headed(self, **options)

    for owner, forward, says in [
        (LlamaModel, with_embedding, "more than the rows of the last layer"),
        (LlamaForCausalLM, normalised, "depends on those of other tokens"),
        (LlamaForCausalLM, twice, "does not run each of its layers once"),
    ]:
        with subtests.test(says), monkeypatch.context() as patched:
            patched.setattr(owner, "forward", forward)
            with pytest.raises(InvalidRequest, match=says):
                Checkpoint(tmp_path)


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    from actograph.contract.errors import PackageMissing

    save_random(CONFIGS["llama"](), tmp_path)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(PackageMissing, match="the logit lens needs torch: pip install torch"):
        Checkpoint(tmp_path)
