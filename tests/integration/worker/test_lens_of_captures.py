"""Captures of an engine, read by lens jobs: the model's logits, and the components that explain them."""

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GPTJConfig, GraniteConfig

from actograph.contract.models import ModelIdentity, PinnedModel
from storage.index.database import Database
from storage.jobs import jobs
from tests.support.analysed import World, store_sessions
from tests.support.architectures import ARCHITECTURES, COMMON, IDS
from tests.support.checkpoints import InProcess, save_random
from tests.support.engine_run import PROMPTS, KeepingSink, read_texts, requests_for
from worker.engine.engine import Engine
from worker.engine.model import weight_files
from worker.engine.model.load import load_model

CONFIGS: dict[str, Callable[[], Any]] = {
    **{name: ARCHITECTURES[name].config for name in ("gemma2", "olmo2", "phi", "gpt2", "llama")},
    "granite": lambda: GraniteConfig(**COMMON, logits_scaling=8.0, residual_multiplier=0.22),
    "gptj": lambda: GPTJConfig(
        **IDS, n_embd=32, n_layer=3, n_head=4, n_positions=160, rotary_dim=4, tie_word_embeddings=False
    ),
}
#: attention and MLP beside each other, so that there is nothing between them
PARALLEL = ("phi", "gptj")
TOKEN, OTHER, LAST = 5, 9, "resid_post.2"


@pytest.mark.parametrize("architecture", CONFIGS)
def test_components_explain_the_models_logits(
    architecture: str, sqlite: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.analysis.lens.ModelEnd", InProcess)
    folder = tmp_path / "model"
    config = CONFIGS[architecture]()
    save_random(config, folder)
    engine = Engine(load_model(str(folder), device="cpu", name="demo"))
    points = ("resid_pre.0", *(f"resid_{part}.{layer}" for layer in range(3) for part in ("mid", "post")))
    # models that scale or cap what the head returns have no point for it
    hooks = [point for point in (*points, "logits") if point in engine.structure.hooks]
    requests, sink = requests_for(engine, PROMPTS[:3]), KeepingSink()
    made = read_texts(engine, requests, hooks=hooks, sink=sink)
    assert [one.error for one in made] == [None] * 3
    stored = [{hook: sink.rows(text, hook).numpy() for hook in hooks} for text in range(3)]
    world = World(sqlite, tmp_path, model=f"demo={folder}")
    source = store_sessions(world.database, world.store, stored)
    identity = ModelIdentity(
        model="demo", source=str(folder), dtype="float32", tokenizer_sha256="0",
        weights_sha256=weight_files.fingerprint(weight_files.find(str(folder), None)),
    )  # fmt: skip
    with world.database.write() as session:
        jobs.pin(session, source, PinnedModel(identity=identity))
    analysis = world.run(
        kind="lens", sessions={"jobs": [source]}, token=TOKEN, against=OTHER, listed=1000, top=1
    )
    assert world.job(analysis).error is None
    found = world.result(analysis)
    assert found["compared_rows"] == (min(8, len(stored[0]["logits"])) if "logits" in hooks else 0)
    kinds = ("layer",) if architecture in PARALLEL else ("attn", "mlp")
    names = ["embed", *(f"{kind}.{layer}" for layer in range(3) for kind in kinds), "bias"]
    assert [one["component"] for one in found["attribution"]] == names
    plain: Any = engine.model.hf
    with torch.inference_mode():
        outputs = [plain(input_ids=torch.tensor([one.prompt_ids])).logits[0].double() for one in requests]
    logits = torch.cat(outputs).numpy()
    due = (logits if architecture != "gemma2" else np.arctanh(logits / 30) * 30)[:, [TOKEN, OTHER]]
    files = world.files(analysis)
    listed = csv.DictReader(io.StringIO(files["contributions.csv"].decode()))
    sums = np.array([float(one["contribution"]) for one in listed]).reshape(-1, len(names)).sum(axis=1)
    np.testing.assert_allclose(sums, due[:, 0] - due[:, 1], atol=1e-4)
    read = csv.DictReader(io.StringIO(files["lens.csv"].decode()))
    tops = [int(one["token"]) for one in read if one["hook"] == LAST]
    assert tops == logits.argmax(axis=1).tolist()
