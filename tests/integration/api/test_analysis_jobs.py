"""Analysis jobs through the whole service: planted outliers are found, also after a stop and in any order."""

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from actograph.client import Client
from actograph.contract.specs import ANALYSIS_QUEUE
from storage.files import files
from storage.index.ids import new_worker_id
from storage.queue import workers
from storage.sessions.writer import TensorRows
from tests.integration.api.conftest import Service
from tests.support.command_line import Run
from worker.analysis import registry
from worker.analysis.context import Context
from worker.analysis.drain import AnalysisDrain
from worker.signals.stop_signal import StopSignal

pytestmark = pytest.mark.integration

LAYERS, WIDTH, ROWS = 4, 8, 6
HOOKS = [f"{point}.{layer}" for point in ("attn_in", "mlp_in") for layer in range(LAYERS)]
Plant = Callable[[dict[str, NDArray[np.float32]], int], None]


class Analyst:
    """A service, and an analysis worker beside it."""

    def __init__(self, service: Service, folder: Path) -> None:
        self.service = service
        self.client = service.client
        self.stop = StopSignal.create(folder)
        self.worker_id = new_worker_id()
        self.tensors: list[dict[str, NDArray[np.float32]]] = []

    def capture(self, plant: Plant, sessions: int = 3) -> str:
        """A finished job whose sessions hold normal numbers, changed by `plant`."""
        job_id = self.service.submit(
            inputs=[{"prompt": "Hello"}] * sessions,
            capture={"points": ["attn_in", "mlp_in"], "layers": "all"},
        )
        for number, lease in enumerate(self.service.claim(job_id, sessions)):
            draw = np.random.default_rng(number)
            arrays = {name: draw.normal(size=(ROWS, WIDTH)).astype(np.float32) for name in HOOKS}
            plant(arrays, number)
            self.tensors.append(arrays)
            rows = {
                name: TensorRows(name=name, dtype="F32", first_row=0, shape=(ROWS, WIDTH), data=a.tobytes())
                for name, a in arrays.items()
            }
            self.service.finish(lease, tensors=rows)
        return job_id

    def submit(self, *jobs: str, **changes: Any) -> str:
        body = {"kind": "outliers", "jobs": list(jobs)} | changes
        answer = self.client.post("/v1/jobs", json=body)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["id"])

    def work(self, **settings: Any) -> None:
        """Run what waits, as the analysis worker does."""
        services = self.service.services
        with services.database.write() as session:
            workers.register(session, self.worker_id, hostname="here", pid=1, model=ANALYSIS_QUEUE)
        AnalysisDrain(
            settings=services.settings.model_copy(update=settings),
            database=services.database,
            store=services.store,
            worker_id=self.worker_id,
            stop=self.stop,
        ).look()

    def results(self, job_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.client.get(f"/v1/jobs/{job_id}/results").json()
        return found

    def all(self, name: str) -> NDArray[np.float64]:
        return np.concatenate([one[name] for one in self.tensors]).astype(np.float64)


@pytest.fixture
def analyst(service: Service, tmp_path: Path) -> Analyst:
    service.load_model()
    return Analyst(service, tmp_path)


def everywhere(arrays: dict[str, NDArray[np.float32]], number: int) -> None:
    """Feature 5 in every layer of attn_in at one position of six; feature 2 in one layer alone."""
    for layer in range(LAYERS):
        arrays[f"attn_in.{layer}"][layer % ROWS, 5] = -7.0
    arrays["mlp_in.1"][0, 2] = 5000.0 if number == 1 else 0.0


def test_planted_outliers_are_found_in_both_readings(analyst: Analyst) -> None:
    source = analyst.capture(everywhere)
    # feature 5: one position of each layer, another one in each; 4 of 6 positions in any, 1 of 6 on average
    union = analyst.submit(source, layer_share=0.5, position_share=0.3)
    mean = analyst.submit(source, layer_share=0.5, position_share=0.3, positions="mean")
    low = analyst.submit(source, layer_share=0.5, position_share=1 / 6, positions="mean")
    analyst.work()
    assert analyst.results(mean)["analysis"]["jobs"][0]["outlier_features"] == []
    for job_id, share in ((union, 4 / 6), (low, 1 / 6)):
        (found,) = analyst.results(job_id)["analysis"]["jobs"][0]["outlier_features"]
        assert (found["points"], found["feature"], found["layers"]) == ("attn_in", 5, [0, 1, 2, 3])
        assert found["position_share"] == pytest.approx(share)
    (massive,) = analyst.results(union)["analysis"]["jobs"][0]["massive_activations"]
    assert (massive["hook"], massive["feature"], massive["position"]) == ("mlp_in.1", 2, 0)
    assert massive["value"] == 5000.0


def test_one_pass_numbers_equal_numpy_whatever_the_blocks(analyst: Analyst) -> None:
    source = analyst.capture(everywhere)
    job_id = analyst.submit(source)
    analyst.work(analysis_memory_bytes=WIDTH * 8 * 2 * LAYERS * 2)  # two rows at once
    hooks = analyst.results(job_id)["analysis"]["jobs"][0]["hooks"]
    assert set(hooks) == set(HOOKS)
    for name, found in hooks.items():
        values = analyst.all(name)
        centred = values - values.mean()
        assert found["values"] == values.size
        assert found["mean"] == pytest.approx(values.mean(), rel=1e-5, abs=1e-9)
        assert found["variance"] == pytest.approx(values.var(), rel=1e-5)
        assert found["kurtosis"] == pytest.approx((centred**4).mean() / values.var() ** 2, rel=1e-5)
        assert found["largest"] == np.abs(values).max()
        assert found["median_magnitude"] == pytest.approx(np.median(np.abs(values)), rel=0.01)


def test_a_killed_run_goes_on_from_its_state(analyst: Analyst, monkeypatch: pytest.MonkeyPatch) -> None:
    source = analyst.capture(everywhere)
    whole = analyst.submit(source)
    analyst.work()
    resumed = analyst.submit(source)
    read: list[str] = []
    finish = Context.finish

    class Killed(BaseException):
        pass

    def dies(self: Context, session_id: str, state: Any) -> None:
        finish(self, session_id, state)
        read.append(session_id)
        if len(read) == 2:
            raise Killed

    monkeypatch.setattr(Context, "finish", dies)
    with pytest.raises(Killed):
        analyst.work(analysis_checkpoint_seconds=0, lease_seconds=0.5)
    monkeypatch.setattr(Context, "finish", finish)
    with analyst.service.database.write() as session:  # the lease of the dead worker expires
        workers.bury(session, "here", lambda pid: False)
    assert analyst.client.get(f"/v1/jobs/{resumed}").json()["status"] == "in_progress"
    opened: list[str] = []
    sessions = Context.sessions

    def noted(self: Context, job: Any) -> Any:
        for reader in sessions(self, job):
            opened.append(reader.session_id)
            yield reader

    monkeypatch.setattr(Context, "sessions", noted)
    analyst.work()
    assert len(opened) == 1
    assert opened[0] not in read
    first, second = (analyst.results(job_id)["analysis"] for job_id in (whole, resumed))
    assert json.dumps(first) == json.dumps(second)
    with analyst.service.database.read() as session:
        assert files.of_job(session, resumed, files.ANALYSIS_STATE) == []


def test_files_are_listed_and_read_and_deleted_with_the_job(analyst: Analyst) -> None:
    job_id = analyst.submit(analyst.capture(everywhere))
    analyst.work()
    listed = {file["filename"]: file["id"] for file in analyst.results(job_id)["files"]}
    assert set(listed) == {"outlier_features.csv", "hooks.csv", "outliers.png", "outliers.svg"}
    content = {
        name: analyst.client.get(f"/v1/files/{file_id}/content").content for name, file_id in listed.items()
    }
    assert content["outliers.png"].startswith(b"\x89PNG")
    assert b"<svg" in content["outliers.svg"]
    assert content["hooks.csv"].startswith(b"job_id,model,hook,")
    assert analyst.client.delete(f"/v1/jobs/{job_id}").status_code == 200
    for file_id in listed.values():
        assert analyst.client.get(f"/v1/files/{file_id}").status_code == 404
    analyst.service.drain()
    assert list(analyst.service.services.store.list_prefixes("files")) == []


def test_several_jobs_stand_side_by_side(analyst: Analyst) -> None:
    first, second = analyst.capture(everywhere), analyst.capture(lambda arrays, number: None)
    job_id = analyst.submit(first, second, points=["attn_in"])
    analyst.work()
    found = analyst.results(job_id)["analysis"]["jobs"]
    assert [one["job_id"] for one in found] == [first, second]
    assert [[f["feature"] for f in one["outlier_features"]] for one in found] == [[5], []]


def test_no_worker_of_a_model_takes_an_analysis(analyst: Analyst) -> None:
    job_id = analyst.submit(analyst.capture(everywhere))
    assert analyst.service.next_job() is None
    assert analyst.service.next_job(ANALYSIS_QUEUE) == job_id
    assert ANALYSIS_QUEUE in analyst.service.woken()
    shown = analyst.client.get(f"/v1/jobs/{job_id}").json()
    assert "no analysis worker is alive" in shown["waiting_reason"]
    answer = analyst.client.post(
        "/v1/estimate", json={"kind": "outliers", "jobs": [shown["spec"]["jobs"][0]]}
    )
    assert sorted(answer.json()["hooks"]) == HOOKS
    assert "3 sessions" in answer.json()["assumptions"][0]


def test_cancel_and_retry(analyst: Analyst) -> None:
    job_id = analyst.submit(analyst.capture(everywhere))
    assert analyst.client.post(f"/v1/jobs/{job_id}/cancel").json()["status"] == "cancelled"
    analyst.work()
    assert analyst.results(job_id)["analysis"] is None
    assert analyst.client.post(f"/v1/jobs/{job_id}/retry").status_code == 202
    analyst.work()
    assert analyst.client.get(f"/v1/jobs/{job_id}").json()["status"] == "completed"
    assert analyst.results(job_id)["analysis"]["kind"] == "outliers"


def test_a_job_cancelled_in_mid_run_ends(analyst: Analyst, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = analyst.submit(analyst.capture(everywhere))
    run = registry.KINDS["outliers"]

    def cancelled(context: Context) -> Any:
        analyst.client.post(f"/v1/jobs/{job_id}/cancel")
        deadline = time.monotonic() + 120
        while not context._keeper.should_stop():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return run(context)

    monkeypatch.setattr(registry, "KINDS", {"outliers": cancelled})
    monkeypatch.setattr("worker.analysis.drain.KINDS", registry.KINDS)
    analyst.work()
    assert analyst.client.get(f"/v1/jobs/{job_id}").json()["status"] == "cancelled"


def test_a_fault_fails_the_job_with_its_reason(analyst: Analyst) -> None:
    source = analyst.capture(everywhere)
    job_id = analyst.submit(source, hooks=["mlp_in.0"], points=["attn_in"], together=True)
    service = analyst.service
    stored = next(iter(service.services.store.list_prefixes("sessions"))).prefix
    service.services.store.delete_prefix(stored)
    analyst.work()
    shown = analyst.client.get(f"/v1/jobs/{job_id}").json()
    assert shown["status"] == "failed"
    assert stored.rpartition("/")[2] in shown["error"]["message"]


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"jobs": ["job_" + "0" * 32]}, "/jobs/0"),
        ({"hooks": ["resid_post.0"]}, "/hooks"),
        ({"points": ["router_logits"]}, "/points"),
        ({"sessions": {"conditions": ["other"]}}, "/jobs/0"),
        ({"positions": "most"}, "/positions"),
        ({"model": "demo"}, "/model"),
    ],
)
def test_bad_specs_are_refused(
    analyst: Analyst, changes: dict[str, Any], pointer: str, problem: Callable[..., Any]
) -> None:
    source = analyst.capture(everywhere)
    before = analyst.service.queue_state()
    body = {"kind": "outliers", "jobs": [source]} | changes
    problem(analyst.client.post("/v1/jobs", json=body), 422, pointer=pointer)
    assert analyst.service.queue_state() == before


def test_the_client_and_the_command_wait_for_the_report(analyst: Analyst, url: str, run: Run) -> None:
    source = analyst.capture(everywhere)
    beside = threading.Thread(target=lambda: _work_until(analyst, 2), daemon=True)
    beside.start()
    with Client(url, "") as client:
        report = client.analysis.outliers(source, points=["attn_in"], timeout=120)
        assert [one["feature"] for one in report.jobs[0].outlier_features] == [5]
        assert report.frame()["feature"].tolist() == [5]
    code, out, _ = run("outliers", source, "--positions", "mean", "--position-share", "0.9")
    assert code == 0
    assert json.loads(out)["jobs"][0]["outlier_features"] == []
    beside.join(120)


def _work_until(analyst: Analyst, count: int) -> None:
    """Run analyses until so many have ended."""
    for _ in range(2000):
        found = analyst.client.get("/v1/jobs?kind=outliers&status=completed").json()["data"]
        if len(found) >= count:
            return
        analyst.work()
        time.sleep(0.05)


def test_a_spec_file_needs_no_model(analyst: Analyst, run: Run, tmp_path: Path) -> None:
    path = tmp_path / "outliers.json"
    path.write_text(json.dumps({"kind": "outliers", "jobs": [analyst.capture(everywhere)]}))
    code, _, said = run("jobs", "submit", path)
    assert code == 0, said
    assert len(analyst.client.get("/v1/jobs?kind=outliers").json()["data"]) == 1
