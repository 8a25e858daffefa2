"""Reloads in the middle of a drain, through the whole service: every session is of the job's own model."""

import json
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from actograph.client import Client
from actograph.contract.resources import Job, JobStatus, ModelLoad

pytestmark = pytest.mark.e2e

PROBLEMS = 48
AFTER = 8
FIRST, SECOND = ([{"name": "late", "selector": f"model.layers[{layer}].mlp.output"}] for layer in (0, 1))


class Lab:
    """A service whose model folder can be written."""

    def __init__(self, start: Callable[..., Any], folder: Path, shared: Path) -> None:
        self.model = folder / "tiny"
        shutil.copytree(shared / "models" / "tiny-qwen3", self.model)
        for path in [self.model, *self.model.iterdir()]:
            path.chmod(0o755)
        with (shared / "data" / "gsm8k" / "test.jsonl").open() as lines:
            (folder / "problems.jsonl").write_text("".join(next(lines) for _ in range(PROBLEMS)))
        self.dataset = folder / "problems.jsonl"
        service = start("--dtype=float32", model=str(self.model))
        service.await_ready()
        self.service = service
        self.client = Client(service.url, "", timeout=60)

    def submit(self, hooks: list[str]) -> str:
        job = self.client.submit(
            {
                "kind": "evaluation",
                "model": "tiny",
                "task": "gsm8k",
                "dataset": {"file_id": self.client.files.upload(self.dataset).id},
                "sampling": {"max_tokens": 64},
                "capture": {"hooks": hooks, "dtype": "model"},
            }
        )
        return job.id

    def load(self, **options: Any) -> ModelLoad:
        found = self.client.models.load("tiny", **options)
        deadline = time.monotonic() + 120
        while not found.status.is_terminal():
            assert time.monotonic() < deadline
            time.sleep(0.05)
            found = self.client.models.get_load(found.id)
        assert found.status is JobStatus.COMPLETED, found
        return found

    def in_the_middle(self, job_id: str) -> None:
        """Wait until some samples of the job have ended and many have not."""
        deadline = time.monotonic() + 120
        while (job := self.client.jobs.get(job_id)).progress.completed < AFTER:
            assert time.monotonic() < deadline, job
            time.sleep(0.02)
        assert job.progress.completed < PROBLEMS - AFTER, "the job ended before the reload"

    def ended(self, job_id: str) -> Job:
        for _ in self.client.jobs.events(job_id):
            pass
        return self.client.jobs.get(job_id)

    def manifests(self, job_id: str) -> list[dict[str, Any]]:
        folder = self.service.home / "artifacts" / "sessions"
        ids = [session.id for session in self.client.sessions.list(job_id=job_id)]
        return [json.loads((folder / session_id / "manifest.json").read_text()) for session_id in ids]


@pytest.fixture(scope="module")
def lab(
    module_up: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory, shared: Path
) -> Iterator[Lab]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("ACTOGRAPH_BATCH_SIZE", "2")
        made = Lab(module_up, tmp_path_factory.mktemp("lab"), shared)
    yield made
    made.client.close()


@pytest.mark.parametrize(
    "reload", [{"savepoints": SECOND}, {}, {"dtype": "bfloat16"}], ids=["savepoint", "plain", "bfloat16"]
)
def test_a_reload_in_the_middle_changes_nothing(lab: Lab, reload: dict[str, Any]) -> None:
    lab.load(savepoints=FIRST)
    job_id = lab.submit(["late"])
    lab.in_the_middle(job_id)
    lab.load(**reload)
    job = lab.ended(job_id)
    assert (job.status, job.progress.completed) == (JobStatus.COMPLETED, PROBLEMS), job.error
    found = lab.manifests(job_id)
    assert Counter(hook for manifest in found for hook in manifest["tensors"]) == {"mlp_out.0": PROBLEMS}
    assert {manifest["tensors"]["mlp_out.0"]["dtype"] for manifest in found} == {"F32"}
    assert {json.dumps(manifest["resolved_hooks"]) for manifest in found} == {'{"late": "mlp_out.0"}'}
    assert {manifest["identity_sha256"] for manifest in found} == {job.identity_sha256}
    matrix = lab.client.jobs.get(job_id).matrix("late")
    assert (len(matrix), matrix.skipped) == (PROBLEMS, [])
    assert np.array_equal(matrix.features, lab.client.jobs.get(job_id).matrix("mlp_out.0").features)
    path = f"/v1/activations/sessions/{found[0]['session_id']}/tensors/late"
    answer = httpx.get(lab.service.url + path, params={"rows": "0:1", "format": "json"})
    assert answer.json()["hook"] == "mlp_out.0"
    said = [event.data["differences"] for event in lab.client.jobs.events(job_id) if "pinned" in event.event]
    assert any("dtype" in text for text in said) == ("dtype" in reload)


def test_overwritten_weights_fail_the_job_and_mix_nothing(lab: Lab) -> None:
    lab.load()
    job_id = lab.submit(["mlp_out.1"])
    lab.in_the_middle(job_id)
    path = lab.model / "model.safetensors"
    tensors = load_file(path)
    name = min(tensors)
    save_file(tensors | {name: np.roll(tensors[name], 1)}, path, metadata={"format": "pt"})
    lab.load()
    job, structure = lab.ended(job_id), lab.client.models.structure("tiny")
    assert job.status is JobStatus.FAILED
    assert job.error is not None
    assert job.error.type == "model_changed"
    assert structure.identity is not None
    assert job.identity_sha256 is not None
    assert structure.identity.sha256 != job.identity_sha256
    for fingerprint in (structure.identity.sha256, job.identity_sha256):
        assert fingerprint in job.error.message
    found = lab.manifests(job_id)
    assert AFTER <= len(found) < PROBLEMS
    assert {manifest["identity_sha256"] for manifest in found} == {job.identity_sha256}
    again = lab.ended(lab.submit(["mlp_out.1"]))
    assert (again.status, again.identity_sha256) == (JobStatus.COMPLETED, structure.identity.sha256)
