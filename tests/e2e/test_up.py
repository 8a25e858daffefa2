"""`actograph up` as a user runs it: ready, refused, restarted, stopped."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actograph.client import ActographError, Client
from actograph.contract.operations import WorkerStatus
from actograph.demo import MODEL_DIR, PROBLEMS
from actograph.stack import redis_server
from tests.support.processes import is_broker, words_of

pytestmark = pytest.mark.e2e

Start = Callable[..., Any]
ACTOGRAPH = [sys.executable, "-m", "actograph.cli.main"]


def evaluate(client: Client, limit: int = 8) -> str:
    file = client.files.upload(PROBLEMS)
    job = client.submit(
        {
            "kind": "evaluation",
            "model": "demo",
            "dataset": {"file_id": file.id},
            "limit": limit,
            "sampling": {"max_tokens": 96},
            "capture": {"points": ["resid_post"], "layers": "all"},
        }
    )
    events = [event.event for event in client.jobs.events(job.id)]
    assert "job.completed" in events[-2:], client.jobs.get(job.id)
    return job.id


@pytest.mark.soak
def test_ready_means_that_jobs_run_also_after_kills_and_stop_leaves_nothing(
    up: Start, wait: Start, gone: Start
) -> None:
    service = up()
    service.await_ready()
    with Client(service.url, "", retries=8) as client:
        assert client.ready()
        assert [w.status for w in client.workers.list() if w.model == "demo"] == [WorkerStatus.READY]
        job_id = evaluate(client)
        assert len(list(client.sessions.list(job_id=job_id))) == 8
        for word in ("worker", "api", "redis"):
            killed = next(filter(is_broker, service.children())) if word == "redis" else service.child(word)
            killed.kill()
            wait(lambda: "starting it again" in service.said())
            wait(lambda: service_is_ready(client))
            wait(lambda: "is ready again" in service.said())
            evaluate(client)
    assert service.process.poll() is None
    assert "SIGKILL" in service.said()
    children = service.children()
    assert len(children) >= 4
    second = subprocess.run(
        [*ACTOGRAPH, "up", f"--home={service.home}", "--port=0", f"--model={MODEL_DIR}"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (second.returncode, second.stdout) == (1, "")
    assert f"pid {service.process.pid}" in second.stderr
    assert len(second.stderr.splitlines()) == 1
    assert service.stop() == 0
    assert gone(children)
    assert {p.name for p in (service.home / "logs").iterdir()} == {
        *("redis.log", "migrate.log", "api.log", "upkeep.log", "worker-1.log", "analysis.log")
    }


def service_is_ready(client: Client) -> bool:
    try:
        return client.ready()
    except ActographError:  # it is being restarted
        return False


@pytest.mark.soak
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux's")
def test_nothing_outlives_up_when_it_is_killed(up: Start, wait: Start, gone: Start) -> None:
    service = up()
    service.await_ready()
    children = service.children()
    os.kill(service.process.pid, signal.SIGKILL)
    service.process.wait()
    wait(lambda: gone(children), 20)
    again = up(home=service.home)
    again.await_ready()
    assert again.stop() == 0


@pytest.mark.soak
def test_a_broker_that_runs_already_is_used(
    up: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = redis_server.prepare(tmp_path / "broker")
    process = subprocess.Popen(broker.command, stdout=subprocess.DEVNULL)
    try:
        monkeypatch.setenv("ACTOGRAPH_BROKER_URL", broker.url)
        service = up()
        service.await_ready()
        with Client(service.url, "") as client:
            evaluate(client)
        assert not (service.home / "redis").exists()
        assert service.stop() == 0
        assert broker.answers()
    finally:
        process.terminate()
        process.wait()


@pytest.mark.soak
def test_with_keys_only_their_bearers_are_served(up: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACTOGRAPH_API_KEYS", "first,second")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-the-store")
    service = up()
    service.await_ready()
    _secrets_are_where_they_are_needed(service)
    assert service.home.stat().st_mode & 0o077 == 0
    with Client(service.url, "second") as client:
        assert [w.model for w in client.workers.list() if w.device] == ["demo"]
    asked = [*ACTOGRAPH, "--url", service.url, "jobs", "ls"]
    assert subprocess.run(asked, capture_output=True, check=False).returncode == 4
    assert service.stop() == 0


def _secrets_are_where_they_are_needed(service: Any) -> None:
    """No argument of a program holds one, for all users of a machine see those."""
    api, worker = service.child("api").environ(), service.child("worker").environ()
    redis = next(filter(is_broker, service.children())).environ()
    assert api["ACTOGRAPH_API_KEYS"] == "first,second"
    assert (worker["ACTOGRAPH_API_KEYS"], worker["ACTOGRAPH_SUPERVISOR_KEY"]) == ("", "")
    assert not [name for name in redis if name.startswith(("ACTOGRAPH_", "AWS_"))]
    assert worker["AWS_SECRET_ACCESS_KEY"] == "of-the-store"
    assert worker["ACTOGRAPH_BROKER_URL"] == api["ACTOGRAPH_BROKER_URL"]
    password = api["ACTOGRAPH_BROKER_URL"].partition("@")[0].rpartition(":")[2]
    secrets = ("first,second", "of-the-store", password, api["ACTOGRAPH_SUPERVISOR_KEY"])
    for child in service.children():
        assert not any(secret in argument for secret in secrets for argument in words_of(child))


@pytest.mark.soak
def test_a_second_signal_ends_it_at_once(up: Start, gone: Start) -> None:
    service = up()
    service.await_ready()
    children = service.children()
    worker = service.child("worker")
    # a worker that cannot end in good order
    worker.suspend()
    service.process.send_signal(signal.SIGINT)
    time.sleep(1)
    assert service.process.poll() is None
    service.process.send_signal(signal.SIGINT)
    assert service.process.wait(120) == 130
    assert gone(children)


def test_a_stop_before_it_is_ready(up: Start, wait: Start, gone: Start) -> None:
    service = up()
    wait(lambda: any("worker" in words_of(c) for c in service.children()))
    children = service.children()
    assert service.stop() == 0
    assert gone(children)


@pytest.mark.soak
def test_a_model_that_cannot_be_loaded_ends_it_with_the_reason(
    up: Start, tmp_path: Path, gone: Start
) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    service = up(model=str(empty))
    assert service.process.wait(120) == 1
    last = service.said().splitlines()[-1]
    assert last.startswith("error: worker-1 could not start: worker: ")
    assert "config" in last


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [*ACTOGRAPH, "up", f"--home={tmp_path}", f"--port={port}", f"--model={MODEL_DIR}"],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == (
        f"error: cannot listen on port {port} of 127.0.0.1: the port is in use or not permitted, or the host "
        "is not this machine; choose others with --port (0: any free one) and --host\n"
    )


@pytest.mark.soak
def test_folders_of_the_users_that_are_named_like_ours_are_not_run(up: Start, tmp_path: Path) -> None:
    for name in ("api", "worker", "storage"):
        folder = tmp_path / "cwd" / name
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text("raise SystemExit('the wrong package')")
    before = Path.cwd()
    os.chdir(tmp_path / "cwd")
    try:
        service = up()
    finally:
        os.chdir(before)
    service.await_ready()
    assert service.stop() == 0
