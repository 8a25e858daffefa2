"""Probes and comparisons as jobs, through the whole service."""

import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actograph.client import Client
from storage.queue import workers
from storage.sessions.writer import TensorRows
from tests.integration.api.conftest import Service
from tests.integration.api.test_analysis_jobs import HOOKS, ROWS, WIDTH, Analyst
from tests.support.command_line import Run
from worker.analysis.context import Context

pytestmark = pytest.mark.integration

PROBLEMS = 24
STRONG = "mlp_in.2"


@pytest.fixture
def analyst(service: Service, tmp_path: Path) -> Analyst:
    service.load_model()
    return Analyst(service, tmp_path)


def record(analyst: Analyst, seed: int = 0, shift: float = 0.0) -> str:
    """A job in which feature 3 of one hook tells right from wrong; every problem occurs twice."""
    job_id = analyst.service.submit(
        inputs=[{"prompt": f"problem {number // 2}"} for number in range(2 * PROBLEMS)],
        capture={"points": ["attn_in", "mlp_in"], "layers": "all"},
    )
    draw = np.random.default_rng(seed)
    for number, lease in enumerate(analyst.service.claim(job_id, 2 * PROBLEMS)):
        correct = number // 2 % 2 == 0
        arrays = {name: draw.normal(size=(ROWS, WIDTH)).astype(np.float32) for name in HOOKS}
        arrays[STRONG][:, 3] += 6 * correct
        arrays[STRONG][:, 5] += np.float32(shift)
        rows = {
            name: TensorRows(name=name, dtype="F32", first_row=0, shape=(ROWS, WIDTH), data=a.tobytes())
            for name, a in arrays.items()
        }
        analyst.service.finish(lease, tensors=rows, correct=correct)
    return job_id


def submit(analyst: Analyst, *jobs: str, **spec: Any) -> dict[str, Any]:
    job_id = analyst.submit(*jobs, **spec)
    analyst.work(analysis_checkpoint_seconds=0)
    answer = analyst.results(job_id)
    assert answer["status"] == "completed", analyst.client.get(f"/v1/jobs/{job_id}/samples").json()
    return answer


def test_a_probe_finds_the_hook_that_tells_right_from_wrong(analyst: Analyst) -> None:
    answer = submit(
        analyst, record(analyst), kind="probe", points=["mlp_in"], rows="all", resamples=50, shuffles=2,
        store_as="right",
    )  # fmt: skip
    found = answer["analysis"]
    assert (found["sessions"], found["skipped"]) == (2 * PROBLEMS, 0)
    strong, weak = found["hooks"][STRONG], found["hooks"]["mlp_in.0"]
    assert strong["groups"] == PROBLEMS
    assert strong["auroc"] == 1.0
    assert weak["auroc"] < 0.9
    assert set(strong["baselines"]) == {
        "majority", "length", "bag_of_words", "layer_0", "shuffled_labels", "random_labels",
    }  # fmt: skip
    assert {one["filename"] for one in answer["files"]} == {"probes.csv", "probes.png", "probes.svg"}
    vector = analyst.client.get(f"/v1/interventions/{found['vectors'][STRONG]}").json()
    assert (vector["name"], vector["hook"], vector["width"]) == ("right", STRONG, WIDTH)


def test_a_comparison_of_two_jobs_finds_the_shift(analyst: Analyst) -> None:
    first, second = record(analyst), record(analyst, seed=1, shift=3.0)
    answer = submit(
        analyst, first, second, kind="compare", points=["mlp_in"], rows="all", permutations=99, top=1
    )
    found = answer["analysis"]
    assert found["sides"] == [first, second]
    assert found["hooks"][STRONG]["pairs"] == PROBLEMS
    assert found["hooks"][STRONG]["features"][0]["feature"] == 5
    assert found["hooks"][STRONG]["features"][0]["difference"] == pytest.approx(3, abs=0.4)
    assert found["hooks"][STRONG]["p_value"] == 0.01
    names = {one["filename"] for one in answer["files"]}
    assert names == {"comparison.csv", "comparison.png", "comparison.svg"}


def test_a_killed_probe_goes_on_from_its_state(analyst: Analyst, monkeypatch: pytest.MonkeyPatch) -> None:
    source = record(analyst)
    spec: dict[str, Any] = {"kind": "probe", "hooks": [STRONG], "rows": "all", "resamples": 10, "shuffles": 0}
    whole = submit(analyst, source, **spec)["analysis"]
    resumed = analyst.submit(source, **spec)
    finish = Context.finish
    read: list[str] = []

    class Killed(BaseException):
        pass

    def die(self: Context, session_id: str, state: Any) -> None:
        finish(self, session_id, state)
        read.append(session_id)
        if len(read) == 10:
            raise Killed

    monkeypatch.setattr(Context, "finish", die)
    with pytest.raises(Killed):
        analyst.work(analysis_checkpoint_seconds=0)
    with analyst.service.database.write() as session:  # the lease of the dead worker expires
        workers.bury(session, "here", lambda pid: False)
    analyst.work(analysis_checkpoint_seconds=0)
    assert analyst.results(resumed)["analysis"] == whole
    assert len(read) == len(set(read)) == 2 * PROBLEMS


def test_specs_and_labels_that_cannot_be_used_are_refused(analyst: Analyst) -> None:
    source = record(analyst)
    answer = analyst.client.post("/v1/jobs", json={"kind": "compare", "jobs": [source]})
    assert answer.status_code == 422
    assert "two jobs" in answer.text
    for changes, message in (
        ({"label": "nothing"}, "has the label 'nothing'"),
        ({"label": "condition"}, "two different values"),
    ):
        job_id = analyst.submit(source, kind="probe", hooks=[STRONG], rows="all", **changes)
        analyst.work()
        samples = analyst.client.get(f"/v1/jobs/{job_id}/samples").json()["data"]
        assert message in samples[0]["error"]["message"]
    job_id = analyst.submit(source, kind="probe", points=["mlp_in"], rows="all")
    analyst.work(analysis_memory_bytes=16)
    samples = analyst.client.get(f"/v1/jobs/{job_id}/samples").json()["data"]
    assert "ACTOGRAPH_ANALYSIS_MEMORY_BYTES" in samples[0]["error"]["message"]


def test_the_client_and_the_commands_wait_for_the_numbers(analyst: Analyst, url: str, run: Run) -> None:
    first, second = record(analyst), record(analyst, seed=1, shift=3.0)
    beside = threading.Thread(target=lambda: work_until(analyst, 4), daemon=True)
    beside.start()
    quick: dict[str, Any] = {"rows": "all", "hooks": [STRONG]}
    with Client(url, "") as client:
        probe = client.analysis.probe(first, resamples=10, shuffles=0, store_as="right", timeout=120, **quick)
        difference = client.analysis.compare(first, second, permutations=99, timeout=120, **quick)
    assert probe.hooks[STRONG]["auroc"] == 1.0
    assert list(probe.vectors) == [STRONG]
    assert probe.frame()["hook"].tolist() == [STRONG]
    assert difference.hooks[STRONG]["p_value"] == 0.01
    flags = ("--resamples", "10", "--shuffles", "0", "--hook", STRONG)
    code, out, said = run("probe", first, "--label", "job", *flags, second)
    assert code == 0, said
    assert json.loads(out)["label"] == "job"
    code, out, said = run("compare", first, second, "--hook", STRONG, "--permutations", "99")
    assert code == 0, said
    assert json.loads(out)["hooks"][STRONG]["p_value"] == 0.01
    beside.join(120)


def work_until(analyst: Analyst, count: int) -> None:
    """Run analyses until so many have ended."""
    for _ in range(2000):
        found = analyst.client.get("/v1/jobs?status=completed").json()["data"]
        if len([job for job in found if job["kind"] in ("probe", "compare")]) >= count:
            return
        analyst.work()
        time.sleep(0.05)
