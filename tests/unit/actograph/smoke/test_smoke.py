"""`actograph smoke` against small fakes: it passes on a sound service and names what is wrong with others."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actograph.cli.main import main
from actograph.contract import resources
from actograph.smoke.failures import MEANINGS, Kind

HOOK = "resid_post.1"
ROWS, WIDTH = 12, 4


def structure(model: str = "demo") -> resources.ModelStructure:
    location = "model.layers.1.output"
    return resources.ModelStructure(
        model=model, architecture="Tiny", num_layers=2, hidden_size=WIDTH, vocab_size=10, context_length=64,
        dtype="float32", device="cpu", num_parameters=1, chat_template=False, eos_token_ids=[0],
        hooks={HOOK: resources.HookInfo(location=location, width=WIDTH, dtype="float32")},
        module_locations=[location],
    )  # fmt: skip


@pytest.fixture
def sound(service: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A fake whose jobs complete at once, with activations."""
    service.models = [resources.Model(id="demo", created=1, status="loaded")]
    service.structure = structure()
    service.rows = np.arange(1, ROWS * WIDTH + 1, dtype="<f4").reshape(ROWS, WIDTH)

    def run_job(job: resources.Job) -> resources.Job:
        count = 2 if job.kind == "evaluation" else 1
        service.samples[job.id] = [add_sample(job, number) for number in range(count)]
        progress = resources.Progress(total=count, completed=count, failed=0)
        return job.model_copy(update={"status": resources.JobStatus.COMPLETED, "progress": progress})

    def add_sample(job: resources.Job, number: int) -> resources.Sample:
        added = service.add_session(len(service.sessions) + 1)
        rows = service.rows
        info = resources.TensorInfo(shape=list(rows.shape), dtype="F32", nbytes=rows.nbytes)
        changes = {"job_id": job.id, "prompt_tokens": 5, "generated_tokens": 8, "rows": ROWS}
        hooks = {HOOK: info} if len(rows) else {}
        session = added.model_copy(update=changes | {"hooks": hooks})
        service.sessions[session.id] = session
        service.tensors[session.id, HOOK] = ("F32", rows)
        score = {"strict-match": resources.Score(value=1.0, answer="5")}
        return resources.Sample(
            id=f"smp_{number}", job_id=job.id, index=number, condition="baseline", input={},
            status=resources.SampleStatus.COMPLETED, session_id=session.id,
            scores=score if job.kind == "evaluation" else {},
        )  # fmt: skip

    service.run_job = run_job
    monkeypatch.setenv("ACTOGRAPH_URL", service.url)
    return service


def test_a_sound_service_passes_and_nothing_is_left(sound: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["smoke", "--model", "demo", "--format", "json"]) == 0
    steps = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(step["step"], step["outcome"]) for step in steps] == [
        (name, "ok")
        for name in ("service", "routes", "queue", "model", "capture", "read again", "evaluation", "clean up")
    ]
    assert all(step["seconds"] >= 0 for step in steps)
    assert (sound.jobs, sound.uploads) == ({}, {})


def test_through_a_proxy_with_a_path(sound: Any, capsys: pytest.CaptureFixture[str]) -> None:
    sound.prefix = "/lab/actograph"
    assert main(["smoke", f"{sound.url}/lab/actograph/"]) == 0
    assert main(["smoke", sound.url]) == Kind.NOT_ACTOGRAPH
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("ok     service ")
    assert lines[-1].startswith("FAILED service ")


@pytest.mark.parametrize(
    "rows",
    [
        np.zeros((0, WIDTH), "<f4"),
        np.zeros((ROWS, WIDTH), "<f4"),
        np.ones((ROWS - 1, WIDTH), "<f4"),
        np.full((ROWS, WIDTH), np.nan, "<f4"),
    ],
    ids=["none", "zeros", "too few", "not finite"],
)
def test_activations_that_are_empty(sound: Any, rows: Any, capsys: pytest.CaptureFixture[str]) -> None:
    sound.rows = rows
    assert main(["smoke"]) == Kind.CAPTURE
    out = capsys.readouterr().out
    assert "FAILED capture " in out
    assert "ok     clean up" in out, "what the test made is deleted after a failure too"
    assert sound.jobs == {}


def test_activations_that_change_later(sound: Any) -> None:
    run_job = sound.run_job

    def overwriting(job: resources.Job) -> resources.Job:
        for key in sound.tensors:
            sound.tensors[key] = ("F32", sound.rows * 2)
        return run_job(job)  # type: ignore[no-any-return]

    sound.run_job = overwriting
    assert main(["smoke"]) == Kind.CAPTURE


@pytest.mark.parametrize("served", [["other"], []])
def test_another_model(sound: Any, served: list[str]) -> None:
    sound.models = [resources.Model(id=name, created=1) for name in served]
    assert main(["smoke", "--model", "demo"]) == Kind.MODEL
    assert sound.paths("POST") == []


def test_a_session_of_another_model(sound: Any) -> None:
    sound.models = [resources.Model(id="wanted", created=1)]
    sound.structure = structure("wanted")  # the sessions of the fake are of `demo`
    assert main(["smoke"]) == Kind.MODEL


def test_a_model_that_is_not_loaded(sound: Any) -> None:
    sound.structure = None
    assert main(["smoke"]) == Kind.MODEL


def test_a_full_store(sound: Any) -> None:
    sound.pauses = [resources.QueuePause(kind="disk", reason="the disk is nearly full")]
    assert main(["smoke"]) == Kind.STORE
    assert sound.paths("POST") == []


@pytest.mark.parametrize(("code", "kind"), [("storage_full", Kind.STORE), ("cuda_out_of_memory", Kind.JOB)])
def test_a_job_that_fails(sound: Any, code: str, kind: Kind, capsys: pytest.CaptureFixture[str]) -> None:
    error = resources.ErrorRecord(type=code, message="it went wrong")
    changes = {"status": resources.JobStatus.FAILED, "error": error}
    run_job = sound.run_job
    sound.run_job = lambda job: run_job(job).model_copy(update=changes)
    assert main(["smoke"]) == kind
    out = capsys.readouterr().out
    assert "it went wrong" in out
    assert "ok     clean up" in out


def test_a_job_that_never_ends_is_cancelled_and_deleted(sound: Any) -> None:
    sound.run_job = None
    assert main(["smoke", "--timeout", "1"]) == Kind.JOB
    assert sound.jobs == {}


def test_a_missing_key(sound: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sound.api_key = "right"
    assert main(["smoke"]) == Kind.KEY
    monkeypatch.setenv("ACTOGRAPH_API_KEY", "wrong")
    assert main(["smoke"]) == Kind.KEY
    monkeypatch.setenv("ACTOGRAPH_API_KEY", "right")
    assert main(["smoke"]) == 0


class Stranger(BaseHTTPRequestHandler):
    """A program that answers everything with its page."""

    def do_GET(self) -> None:
        body = b"<html>hello</html>"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def stranger() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Stranger)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_another_program(stranger: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["smoke", stranger]) == Kind.NOT_ACTOGRAPH
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_nothing_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actograph.client.transport.FIRST_DELAY_SECONDS", 0.01)
    assert main(["smoke", "http://127.0.0.1:9"]) == Kind.UNREACHABLE


def test_every_kind_has_a_meaning_and_a_place_in_the_docs() -> None:
    page = Path(__file__).resolve().parents[4].joinpath("docs/operate/smoke.md").read_text(encoding="utf-8")
    assert set(MEANINGS) == set(Kind)
    assert all(f"| {kind.value} | {meaning}" in page for kind, meaning in MEANINGS.items())
