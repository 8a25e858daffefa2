"""The lens through the whole service: client, command and report."""

import json
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from actograph.analysis.lens.checkpoint import Checkpoint
from actograph.client import Client
from actograph.contract.models.model_identity import ModelIdentity, PinnedModel
from actograph.demo import MODEL_DIR
from storage.queue import pins
from storage.sessions.writer import TensorRows
from tests.integration.api.conftest import Service
from tests.integration.api.test_analysis_jobs import Analyst
from tests.support.command_line import Run
from worker.engine.model import weight_files

pytestmark = pytest.mark.integration

HOOKS = [f"resid_post.{layer}" for layer in range(4)]
TOKENS = [40, 41, 42]


@pytest.fixture
def analyst(service: Service, tmp_path: Path) -> Analyst:
    service.load_model()
    return Analyst(service, tmp_path)


def record(analyst: Analyst) -> str:
    """A job whose rows are the demo model's unembedding of known tokens."""
    service, unembedding = analyst.service, Checkpoint(MODEL_DIR).unembedding
    rows = np.concatenate([unembedding.rows(token, token + 1) for token in TOKENS]) * 10
    width = rows.shape[1]
    job_id = service.submit(inputs=[{"prompt": "Hello"}], capture={"points": ["resid_post"], "layers": "all"})
    (lease,) = service.claim(job_id, 1)
    tensors = {
        name: TensorRows(name=name, dtype="F32", first_row=0, shape=(len(TOKENS), width), data=rows.tobytes())
        for name in HOOKS
    }
    service.finish(lease, tensors=tensors)
    files = weight_files.find(str(MODEL_DIR), None)
    identity = ModelIdentity(
        model="demo", source=str(MODEL_DIR), weights_sha256=weight_files.fingerprint(files), dtype="float32",
        tokenizer_sha256="0" * 64,
    )  # fmt: skip
    with service.services.database.write() as session:
        pins.pin(session, job_id, PinnedModel(identity=identity))
    return job_id


def test_client_command_and_report(analyst: Analyst, url: str, run: Run, tmp_path: Path) -> None:
    source = record(analyst)
    beside = threading.Thread(target=lambda: _work_until(analyst, 2), daemon=True)
    beside.start()
    with Client(url, "") as client:
        found = client.analysis.lens(source, top=1, timeout=120)
        assert found.jobs[0].hooks["resid_post.3"]["agreement"] == 1.0
        assert found.frame()["hook"].tolist() == HOOKS
        listed = client.jobs.results(found.job_id).files
        (table,) = [one.id for one in listed if one.filename == "lens.csv"]
        lines = analyst.client.get(f"/v1/files/{table}/content").text.splitlines()[1:]
        assert [int(line.split(",")[6]) for line in lines] == TOKENS * len(HOOKS)
    code, out, said = run("lens", source, "--rows", "last", "--hook", "resid_post.2")
    assert code == 0, said
    summary = json.loads(out)
    assert summary["jobs"][0]["hooks"]["resid_post.2"]["rows"] == 1
    beside.join(120)
    path = tmp_path / "lens.html"
    code, _, said = run("report", found.job_id, "--out", path)
    assert code == 0, said
    assert f"Logit lens of job {source}" in path.read_text(encoding="utf-8")
    assert "lens-1.svg" in {file.name for file in path.with_name("lens-figures").iterdir()}


def test_arguments_of_files_and_jobs_do_not_mix(run: Run, tmp_path: Path) -> None:
    job = "job_" + "0" * 32
    for arguments, message in (
        ((job, "--model", tmp_path), "--model works on files"),
        (("rows.npz", "--token", "3"), "--token works on jobs"),
        (("rows.npz",), "--model DIR"),
    ):
        code, _, said = run("lens", *arguments)
        assert code == 1
        assert message in said


def test_a_job_without_a_model_identity_fails_with_the_reason(analyst: Analyst) -> None:
    job_id = analyst.submit(analyst.capture(lambda arrays, number: None), kind="lens", points=["mlp_in"])
    analyst.work()
    shown = analyst.client.get(f"/v1/jobs/{job_id}").json()
    assert "has no model identity" in shown["error"]["message"]


def _work_until(analyst: Analyst, count: int) -> None:
    """Run analyses until so many have ended."""
    for _ in range(2000):
        if len(analyst.client.get("/v1/jobs?kind=lens&status=completed").json()["data"]) >= count:
            return
        analyst.work()
        time.sleep(0.05)
