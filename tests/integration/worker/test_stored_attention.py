"""Attention of stored sessions of a job, and a planted induction head that is found in it."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from actograph.client import open_folder
from actograph.contract.errors import NotFound
from worker.engine.engine import Engine
from worker.engine.model.load import wrap_model

if TYPE_CHECKING:
    from tests.integration.worker.conftest import Bench

pytestmark = pytest.mark.integration

TEXT = "Tom has 34 books and Mia has 57 books. How many do they have in total?"


def folder_of(bench: "Bench", text: str, capture: dict[str, Any], tokens: int = 6, **more: Any) -> Path:
    """The folder of the stored session of a job of one prompt."""
    job = bench.submit(inputs=[{"prompt": text}], capture=capture, sampling={"max_tokens": tokens}, **more)
    bench.drain().look()
    (sample,) = bench.samples(job)
    assert sample.error is None, sample.error
    return bench.settings.home / "artifacts" / "sessions" / str(sample.session_id)


def run(bench: "Bench", text: str, capture: dict[str, Any], tokens: int = 6, **more: Any) -> Any:
    return open_folder(folder_of(bench, text, capture, tokens, **more))


def eager(engine: Engine, ids: Any) -> list[np.ndarray[Any, Any]]:
    hf: Any = engine.model.hf
    own = engine.model.text_config._attn_implementation
    hf.set_attn_implementation("eager")
    try:
        with torch.inference_mode():
            output = hf(input_ids=torch.tensor(ids)[None], use_cache=False, output_attentions=True)
    finally:
        hf.set_attn_implementation(own)
    return [one[0].float().numpy() for one in output.attentions]


def test_attention_of_a_session_is_the_model_s(bench: "Bench") -> None:
    session = run(bench, TEXT, {"points": ["q", "k"], "layers": "all"})
    due = eager(bench.engine, session.token_ids[:-1])
    for layer, expected in enumerate(due):
        whole = session.attention(layer)
        assert whole.shape == expected.shape and np.abs(whole - expected).max() <= 1e-4
    part = session.attention(1, 2, rows=range(5, 9))
    assert np.abs(part - due[1][2, 5:9, :9]).max() <= 1e-4


def test_a_session_without_all_keys_says_which_is_missing(bench: "Bench") -> None:
    session = run(bench, TEXT, {"points": ["q", "k"], "layers": [1], "positions": "generated"})
    with pytest.raises(NotFound, match=r"no row of k\.1 for token 0"):
        session.attention(1)
    with pytest.raises(NotFound, match=r"no q\.0.*capture both, with positions all"):
        session.attention(0)


def test_heads_are_captured_and_changed_one_by_one(bench: "Bench") -> None:
    heads = bench.engine.structure.attention[1]
    width, last = heads.width, heads.heads - 1
    points = {"points": ["q", "k", "v", "z", "attn_out"], "layers": [1]}
    folder = folder_of(bench, TEXT, points)
    whole = open_folder(folder)
    chosen = run(bench, TEXT, {"points": ["q", "k"], "layers": [1], "features": {"heads": [1, 0]}})
    for hook in ("q.1", "k.1"):
        swapped = np.concatenate([whole[hook][:, width : 2 * width], whole[hook][:, :width]], axis=1)
        assert np.array_equal(chosen[hook][:], swapped)
    assert np.array_equal(chosen.attention(1, 1), whole.attention(1, 1))
    assert chosen.attention(1).shape[0] == 2
    with pytest.raises(NotFound, match=f"head {last}"):
        chosen.attention(1, last)

    rows = whole["z.1"][:]
    prompt = slice(0, 10)  # of which no edit of this layer changes a row of z
    for field, expected in [
        ({"op": "zero"}, 0 * rows[:, -width:]),
        ({"op": "replace", "vector": [0.5] * width}, 0 * rows[:, -width:] + 0.5),
        ({"op": "replace", "vector": [0.25] * rows.shape[1]}, 0 * rows[:, -width:] + 0.25),
        ({"op": "scale", "coefficient": 2.0}, 2 * rows[:, -width:]),
    ]:
        change = {"hook": "z.1", "features": {"heads": [last]}, **field}
        changed = run(bench, TEXT, points, interventions=[change])["z.1"][:]
        assert np.allclose(changed[prompt, -width:], expected[prompt], atol=1e-5)
        assert np.allclose(changed[prompt, :-width], rows[prompt, :-width], atol=1e-5)
    source = {"session": folder.name, "row": 3}
    change = {"hook": "z.1", "op": "replace", "from": source, "features": {"heads": [0]}}
    patched = run(bench, TEXT, points, interventions=[change])["z.1"][:]
    assert np.allclose(patched[:, :width], rows[3, :width])
    assert np.allclose(patched[prompt, width:], rows[prompt, width:], atol=1e-5)


def _columns(part: int, head: int) -> slice:
    """A head's columns of the joint projection: of queries (0), keys (1) or values (2)."""
    start = part * 192 + head * 64
    return slice(start, start + 64)


def induction_model(vocabulary: int) -> GPT2LMHeadModel:
    """Two layers: head 0 of the first looks at the token before and notes it; head 1 of the second looks for
    tokens that have noted its own token. Everything else is zero."""
    positions, width = 64, 64
    # tokens have random codes; positions and notes have places of their own in the stream
    codes, places, notes = slice(0, 64), slice(64, 128), slice(128, 192)
    config = GPT2Config(
        vocab_size=vocabulary, n_embd=192, n_head=3, n_layer=2, n_positions=positions, bos_token_id=1,
        eos_token_id=1, tie_word_embeddings=False,
    )  # fmt: skip
    model = GPT2LMHeadModel(config).eval()
    rng = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.fill_(1.0 if ".ln_" in name and name.endswith("weight") else 0.0)
        model.transformer.ln_f.weight.fill_(1.0)
        code = torch.randn(vocabulary, width, generator=rng)
        model.transformer.wte.weight[:, codes] = code / code.norm(dim=-1, keepdim=True)
        model.transformer.wpe.weight[:, places] = torch.eye(positions)
        first, second = (block.attn for block in model.transformer.h)
        first.c_attn.weight[places, _columns(0, 0)] = 8 * torch.eye(64)
        first.c_attn.weight[places, _columns(1, 0)] = 8 * torch.eye(64).roll(1, dims=1)
        first.c_attn.weight[codes, _columns(2, 0)] = torch.eye(64)
        first.c_proj.weight[0:64, notes] = torch.eye(64)
        second.c_attn.weight[codes, _columns(0, 1)] = 4 * torch.eye(64)
        second.c_attn.weight[notes, _columns(1, 1)] = 4 * torch.eye(64)
    return model


def test_a_planted_induction_head_is_found(bench: "Bench") -> None:
    tokenizer = bench.engine.model.tokenizer
    model = wrap_model(induction_model(len(tokenizer)), tokenizer, name="tiny-qwen3")
    bench.engine = Engine(model)
    text = "The cat sat by a red box."
    session = run(bench, f"{text} {text}", {"points": ["q", "k"], "layers": "all"}, tokens=1)
    ids = session.token_ids.tolist()[:-1]
    # a token that occurred once before, and what followed it there
    seen = {
        now: ids.index(ids[now]) + 1
        for now in range(len(ids) // 2, len(ids))
        if ids[:now].count(ids[now]) == 1
    }
    assert len(seen) >= 4
    scores = {
        (layer, head): np.mean([one[head, now, then] for now, then in seen.items()])
        for layer in range(2)
        for one in [session.attention(layer)]
        for head in range(3)
    }
    assert max(scores, key=scores.__getitem__) == (1, 1)
    assert scores.pop((1, 1)) > 0.9 and max(scores.values()) < 0.3
    # and the head below it, which looks at the token before
    before = session.attention(0, 0)
    assert np.diag(before, -1).min() > 0.9
