"""Outliers planted in a model's weights are found through the whole service, also after a kill."""

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from actograph.analysis.outliers import outliers_of_arrays
from actograph.client import Client
from actograph.demo import MODEL_DIR

pytestmark = pytest.mark.e2e

FEATURE, PROMPTS = 17, ["The cat sat on the mat.", "Two and two are four.", "It rains in the north."]


def planted(folder: Path) -> Path:
    """The demo's model, in which one output of the second layer's MLP is much larger."""
    shutil.copytree(MODEL_DIR, folder)
    weights = load_file(folder / "model.safetensors")
    name = "model.layers.1.mlp.down_proj.weight"
    weights[name] = weights[name].copy()
    weights[name][FEATURE] = 400
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def test_planted_outliers_are_found_and_a_killed_worker_comes_back(
    up: Callable[..., Any], wait: Callable[..., None], tmp_path: Path
) -> None:
    service = up(model=f"demo={planted(tmp_path / 'model')}")
    service.await_ready()
    with Client(service.url, "") as client:
        job = client.submit(
            {
                "kind": "capture",
                "model": "demo",
                "inputs": [{"prompt": prompt} for prompt in PROMPTS],
                "capture": {"points": ["resid_post", "mlp_in"], "layers": "all", "mode": "prefill"},
            }
        ).wait()
        assert job.status == "completed"
        found = client.analysis.outliers(job, hooks=["resid_post"]).result
        sessions = sorted(job.sessions(), key=lambda one: one.sample_index)
        arrays = {hook: np.concatenate([one[hook][:] for one in sessions]) for hook in found.hooks}
        expected = outliers_of_arrays(arrays)
        assert found.outlier_features == json.loads(json.dumps(expected["outlier_features"]))
        largest = max(found.outlier_features, key=lambda one: float(one["largest"]))
        assert largest["feature"] == FEATURE
        assert {1, 2} <= set(largest["layers"]), "from the second layer on"
        for hook, numbers in expected["arrays"].items():
            assert found.hooks[hook]["variance"] == pytest.approx(numbers["variance"], rel=1e-5)
        killed = service.child("worker.analysis")
        assert killed.memory_info().rss < 150 << 20
        killed.send_signal(signal.SIGKILL)
        wait(lambda: not killed.is_running() or killed.status() == "zombie")
        again = client.analysis.outliers(job, hooks=["resid_post"])
        assert again.result.outlier_features == found.outlier_features
        assert client.jobs.get(job.id).status == "completed"
        worker = next(
            one
            for one in client.workers.list()
            if one.status in ("ready", "busy") and one.serves == ["=analysis"]
        )
        assert worker.pid != killed.pid
    assert service.stop() == 0
