"""Encoders of SAEs: the published formulas, and memory that comes back."""

import copy
import json
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel

from actograph.contract.errors import CaptureFailed
from actograph.contract.saes import NewSae
from evals.plans import sae_bytes
from storage.saes import sae_files
from tests.support.saes import ARCHITECTURES, encoded, sae_tensors, write_sae
from worker.engine.capture.budget import Budget, DeviceMemory, Piece
from worker.engine.capture.encoders import Encoder, Encoders
from worker.engine.messages import Capture, Encoding, Request, request_json, request_of

CPU = torch.device("cpu")
ROWS = np.random.default_rng(1).standard_normal((70, 8)).astype(np.float32)


def encoding_of(root: Path, folder: str = "sae", top: int = 6, **options: Any) -> Encoding:
    found = sae_files.read(NewSae(name="s", path=folder, **options), [str(root)])
    more = {"config": found.config, "sha256": folder, "path": str(found.weights)}
    return Encoding(name="sae:s", hook="resid_post.1", top=top, **more)


def encoder_of(root: Path, **options: Any) -> Encoder:
    encoding = encoding_of(root, **options)
    piece = Budget(1 << 20).piece(sae_bytes(encoding.config), CPU)
    assert piece is not None
    return Encoder(encoding, piece)


def dense(numbers: torch.Tensor, values: torch.Tensor, count: int) -> Any:
    """All latents of rows: what is marked as absent is 0."""
    found = np.zeros((len(numbers), count))
    rows, places = np.nonzero(numbers.numpy() >= 0)
    found[rows, numbers.numpy()[rows, places]] = values.numpy()[rows, places]
    assert (values.numpy()[numbers.numpy() < 0] == 0).all()
    assert (values.numpy()[numbers.numpy() >= 0] > 0).all()
    return found


def test_encodings_equal_the_published_formulas(tmp_path: Path, subtests: pytest.Subtests) -> None:
    cases = product(
        ARCHITECTURES, ("none", "layer_norm", "constant_norm_rescale"), (True, False), (True, False)
    )
    for architecture, normalisation, applies, rescales in cases:
        changes: dict[str, Any] = {"normalize_activations": normalisation, "apply_b_dec_to_input": applies}
        if architecture == "topk":
            changes["rescale_acts_by_decoder_norm"] = rescales
        elif rescales:
            continue
        with subtests.test(architecture, **changes):
            cfg = write_sae(tmp_path / "sae", architecture, **changes)
            due = encoded(ROWS, sae_tensors(architecture), cfg)
            encoder = encoder_of(tmp_path)
            parts = [encoder.top(rows, 24) for rows in torch.from_numpy(ROWS).split(64)]
            numbers, values = (torch.cat(part) for part in zip(*parts, strict=True))
            assert 0.05 < (due > 0).mean() < 0.9, "a case that shows little"
            np.testing.assert_allclose(dense(numbers, values, 24), due, atol=1e-5, rtol=1e-5)
            assert (np.diff(values.numpy(), axis=1) <= 0).all(), "the largest come first"
            few, largest = encoder.top(torch.from_numpy(ROWS[:3]), 3)
            np.testing.assert_allclose(largest, -np.sort(-due[:3], axis=1)[:, :3], atol=1e-5)
            assert few.dtype == torch.int32 and largest.dtype == torch.float32
            padded = encoder.top(torch.from_numpy(ROWS[:3]), 3, padded=True)
            assert torch.equal(padded[0], few)
            np.testing.assert_allclose(padded[1], largest, atol=1e-6)


def test_the_arithmetic_is_in_float32(tmp_path: Path) -> None:
    """Of rows and weights in bfloat16 too."""
    cfg = write_sae(tmp_path / "sae")
    path = tmp_path / "sae" / "sae_weights.safetensors"
    save_file({name: x.to(torch.bfloat16) for name, x in load_file(path).items()}, path)
    rows = torch.from_numpy(ROWS[:9]).to(torch.bfloat16)
    rounded = {name: x.float().numpy() for name, x in load_file(path).items()}
    due = encoded(rows.float().numpy(), rounded, cfg)
    np.testing.assert_allclose(dense(*encoder_of(tmp_path).top(rows, 24), 24), due, atol=1e-5)


def test_centred_rows_are_those_of_a_model_with_centred_weights(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    """As TransformerLens centres them: all that writes to the residual stream loses its mean."""
    config = GPT2Config(n_embd=8, n_layer=2, n_head=2, vocab_size=50, n_positions=32, resid_pdrop=0.0)
    torch.manual_seed(3)
    model = GPT2LMHeadModel(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, 0.3, 0.5)
    centred = copy.deepcopy(model)
    writers = [centred.transformer.wte, centred.transformer.wpe]
    writers += [one for block in centred.transformer.h for one in (block.attn.c_proj, block.mlp.c_proj)]
    for parameter in (one for writer in writers for one in writer.parameters()):
        parameter.data -= parameter.data.mean(-1, keepdim=True)
    ids = torch.arange(1, 24)[None]
    with torch.no_grad():
        rows, due = (one(ids, output_hidden_states=True).hidden_states[:-1] for one in (model, centred))
    cfg = write_sae(tmp_path / "sae")
    encoder = encoder_of(tmp_path, center_rows=True)
    for layer, (row, other) in enumerate(zip(rows, due, strict=True)):
        with subtests.test(layer=layer):
            assert float(row[0].mean(-1).abs().max()) > 0.1, "a case that shows little"
            found = dense(*encoder.top(row[0], 24), 24)
            np.testing.assert_allclose(found, encoded(other[0].numpy(), sae_tensors(), cfg), atol=1e-4)


def test_an_inactive_latent_is_no_latent_0(tmp_path: Path) -> None:
    tensors = sae_tensors() | {"b_enc": np.full(24, -100, np.float32)}
    tensors["b_enc"][0] = 100
    write_sae(tmp_path / "sae", tensors=tensors)
    numbers, values = encoder_of(tmp_path).top(torch.from_numpy(ROWS[:2]), 4)
    assert numbers.tolist() == [[0, -1, -1, -1]] * 2
    assert (values[:, 1:] == 0).all() and (values[:, 0] > 0).all()


def test_an_sae_has_its_memory_while_a_request_has_it(tmp_path: Path, subtests: pytest.Subtests) -> None:
    write_sae(tmp_path / "sae")
    write_sae(tmp_path / "gated", "gated")
    one, other = encoding_of(tmp_path), encoding_of(tmp_path, "gated")
    sizes = sae_bytes(one.config), sae_bytes(other.config)
    for memory in (Budget(sum(sizes)), DeviceMemory(CPU, sum(sizes) + 1024)):
        with subtests.test(type(memory).__name__):
            encoders = Encoders(lambda size, own=memory: own.piece(size, CPU), memory.remove)
            first, again = encoders.open(one), encoders.open(replace(one, top=3, hook="embed"))
            assert first is again and len(encoders) == 1
            assert sizes[0] <= memory.used < sizes[0] + 512
            assert encoders.open(other) is not None
            encoders.close(one)
            assert len(encoders) == 2
            encoders.close(one)
            assert len(encoders) == 1 and sizes[1] <= memory.used < sizes[1] + 512
            encoders.close(other)
            assert memory.used == 0
            full = memory.piece(memory.total - 512, CPU)
            assert full is not None and encoders.open(one) is None, "it waits for room"
            memory.remove(full)
            (tmp_path / "sae" / "sae_weights.safetensors").rename(tmp_path / "aside")
            with pytest.raises(CaptureFailed, match="sae:s: its weights cannot be read"):
                encoders.open(one)
            assert memory.used == 0
            (tmp_path / "aside").rename(tmp_path / "sae" / "sae_weights.safetensors")


def test_its_size_is_what_it_takes(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for architecture in ARCHITECTURES:
        with subtests.test(architecture):
            write_sae(tmp_path / "sae", architecture)
            encoding = encoding_of(tmp_path)
            size = sae_bytes(encoding.config)
            piece = Piece(0, size, size, CPU, torch.empty(size, dtype=torch.uint8))
            Encoder(encoding, piece)
            assert piece.used == size


def test_what_is_asked_crosses_to_the_engine_s_process(tmp_path: Path) -> None:
    write_sae(tmp_path / "sae", "topk")
    capture = Capture(hooks=(), encodings=(encoding_of(tmp_path),))
    asked = Request(key="a", prompt_ids=(1, 2), seed=3, capture=capture)
    assert request_of(json.loads(json.dumps(request_json(asked))), []).capture == capture
