"""An OLMoE-shaped model: 16 texts of 2,048 tokens at all layers, killed and resumed, and its outliers."""

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from safetensors.numpy import load_file, save_file

from actograph.analysis.outlier_features import OutlierRule
from actograph.analysis.outliers import outliers_of_arrays
from actograph.client import Client
from actograph.contract.resources import JobStatus
from actograph.demo import MODEL_DIR

pytestmark = pytest.mark.e2e

LAYERS, EXPERTS, CHOSEN, WIDTH = 16, 64, 8, 32
TEXTS, TOKENS = 16, 2048
#: planted from the embedding on, and in the last four layers alone
EVERYWHERE, LATE = 5, 11
#: of rows before they are on disk; the job stores about 300 MB
BUFFER = 32 << 20
#: of the worker beside its memory when it is ready: buffer, keys and values of two texts, and a pass
MOST_MORE = 224 << 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights in which two features were made large, with the demo's tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, OlmoeConfig

    folder = tmp_path_factory.mktemp("olmoe") / "model"
    shutil.copytree(MODEL_DIR, folder, ignore=shutil.ignore_patterns("*.safetensors", "*config.json"))
    shutil.copy(MODEL_DIR / "tokenizer_config.json", folder)
    ids = json.loads((MODEL_DIR / "config.json").read_text())
    names = ("vocab_size", "pad_token_id", "bos_token_id", "eos_token_id")
    torch.manual_seed(1)
    config = OlmoeConfig(
        **{name: ids.get(name) for name in names}, hidden_size=WIDTH, intermediate_size=16,
        num_hidden_layers=LAYERS, num_attention_heads=4, num_key_value_heads=4, num_experts=EXPERTS,
        num_experts_per_tok=CHOSEN, max_position_embeddings=TOKENS,
    )  # fmt: skip
    automatic: Any = AutoModelForCausalLM
    automatic.from_config(config).save_pretrained(folder)
    weights = load_file(folder / "model.safetensors")
    embedding = weights["model.embed_tokens.weight"].copy()
    embedding[:, EVERYWHERE] = 20
    projection = weights[name := f"model.layers.{LAYERS - 4}.self_attn.o_proj.weight"].copy()
    projection[LATE] *= 4000
    weights |= {"model.embed_tokens.weight": embedding, name: projection}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def model_process(service: Any) -> psutil.Process:
    """The process of the worker that holds the model."""
    worker = service.child("worker")
    return max([worker, *worker.children(recursive=True)], key=lambda one: one.memory_info().rss)


def peak_bytes(process: psutil.Process) -> int:
    """The largest resident memory that a process has had."""
    lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


def test_all_layers_of_a_moe_are_read_once_and_analysed_through_two_kills(
    up: Callable[..., Any], wait: Callable[..., None], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACTOGRAPH_HOST_BUFFER_BYTES", str(BUFFER))
    monkeypatch.setenv("ACTOGRAPH_SLOTS", "2")
    service = up(model=f"demo={folder}")
    service.await_ready()
    resident = peak_bytes(model_process(service))
    generator = np.random.default_rng(3)
    texts = ["".join(generator.choice(list("0123456789+-= "), 4 * TOKENS)) for _ in range(TEXTS)]
    points = ["resid_post", "mlp_in", "router_logits", "expert_indices"]
    with Client(service.url, "") as client:
        job = client.submit(
            {
                "kind": "capture",
                "model": "demo",
                "inputs": [{"prompt": text} for text in texts],
                "truncate": True,
                "capture": {"points": points, "layers": "all", "mode": "prefill"},
            }
        )
        wait(lambda: job.refresh().progress.completed >= 2, 300)
        for process in (model_process(service), service.child("worker")):
            process.send_signal(signal.SIGKILL)
        job = job.wait()
        assert job.status == JobStatus.COMPLETED, job.error
        log = (service.home / "logs" / "worker-1.log").read_text()
        assert log.count("loading model demo") == 2, "one load before the kill, one after it"
        sessions = sorted(job.sessions(), key=lambda one: one.sample_index)
        assert [one.rows for one in sessions] == [TOKENS] * TEXTS
        assert sum(one.bytes for one in sessions) > 280 << 20
        assert peak_bytes(model_process(service)) < resident + MOST_MORE
        body = {"kind": "outliers", "sessions": {"jobs": [job.id]}}
        analysis = client.submit(body)
        wait(lambda: analysis.refresh().status == JobStatus.IN_PROGRESS)
        service.child("worker.analysis").send_signal(signal.SIGKILL)
        assert analysis.refresh().status == JobStatus.IN_PROGRESS
        found = client.analysis.follow(analysis.id, progress=False).result
        assert peak_bytes(service.child("worker.analysis")) < 300 << 20
        mean = client.analysis.outliers(job, hooks=["resid_post"], position_reading="mean").result
        arrays = {hook: np.concatenate([one[hook][:] for one in sessions]) for hook in sessions[0].hooks}
    residual = {hook: rows for hook, rows in arrays.items() if hook.startswith("resid_post")}
    union = [one for one in found.outlier_features if one["points"] == "resid_post"]
    for features, positions in ((union, "union"), (mean.outlier_features, "mean")):
        expected = outliers_of_arrays(residual, OutlierRule(positions=positions))  # type: ignore[arg-type]
        assert features == json.loads(json.dumps(expected["outlier_features"]))
        assert {one["feature"] for one in features} == {EVERYWHERE, LATE}
    assert list(found.experts) == [str(layer) for layer in range(LAYERS)]
    for layer, numbers in found.experts.items():
        assert numbers["tokens"] == TEXTS * TOKENS
        assert sum(numbers["load"]) == pytest.approx(CHOSEN)
        chosen = arrays[f"expert_indices.{layer}"]
        assert numbers["load"] == [float((chosen == one).any(axis=1).mean()) for one in range(EXPERTS)]
