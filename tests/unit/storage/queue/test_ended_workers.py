"""A worker that starts takes back the samples of ended workers of its PID namespace, and no others."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from actograph import process_identity
from actograph.contract.operations import WorkerStatus
from actograph.settings import Settings
from storage.index import deployment
from storage.index.database import Database
from storage.queue import workers
from tests.support import leasing
from worker.process.entry import enter
from worker.signals.stop_signal import StopSignal

Submit = Callable[..., str]
Enter = Callable[[str], None]
OLD, NEW = "wrk_" + "a" * 32, "wrk_" + "b" * 32
HERE = process_identity.pid_namespace()
pytestmark = pytest.mark.skipif(HERE is None, reason="this system shows no PID namespace in /proc")


@pytest.fixture
def start(database: Database, tmp_path: Path) -> Enter:
    """Registers a worker of this process, as a worker does at its start."""
    settings = Settings(home=tmp_path, database_url=database.url.render_as_string(hide_password=False))
    deployment.mark_store(database, settings.effective_artifact_url)

    def run(worker_id: str) -> None:
        enter(settings, database, StopSignal(), worker_id, model="demo", served=["demo"])

    return run


@contextmanager
def another_process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def register(
    database: Database, submit: Submit, pid: int, *, started: int | None, namespace: str | None = HERE
) -> None:
    """A worker with this machine's hostname that holds a sample."""
    job_id = submit()
    with database.write() as session:
        workers.register(
            session, OLD, hostname=socket.gethostname(), pid=pid, pid_namespace=namespace,
            process_started=started, model="demo",
        )  # fmt: skip
        leasing.claim(session, job_id, worker_id=OLD, count=1)


def is_taken_back(database: Database) -> bool:
    """Whether the old worker has been ended and its sample freed: both or neither."""
    with database.read() as session:
        status = {worker.id: worker.status for worker in workers.find(session)}
        has_ended, is_free = status[OLD] == WorkerStatus.OFFLINE, bool(leasing.with_work(session))
    assert status[NEW] == WorkerStatus.STARTING
    assert has_ended == is_free
    return has_ended


@pytest.mark.parametrize("is_reaped", [True, False])
def test_a_killed_worker_loses_its_samples_at_once(
    database: Database, submit: Submit, start: Enter, is_reaped: bool
) -> None:
    with another_process() as process:
        register(database, submit, process.pid, started=process_identity.start_ticks(process.pid))
        process.kill()
        if is_reaped:
            process.wait()
        else:  # a zombie, as its parent has not asked for its status
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        start(NEW)
    assert is_taken_back(database)


def test_a_living_worker_keeps_its_samples(database: Database, submit: Submit, start: Enter) -> None:
    with another_process() as process:
        register(database, submit, process.pid, started=process_identity.start_ticks(process.pid))
        start(NEW)
    assert not is_taken_back(database)


def test_another_process_with_the_pid_is_not_the_worker(
    database: Database, submit: Submit, start: Enter
) -> None:
    """In a container that starts again, the new worker itself has the pid of the old one."""
    started = process_identity.start_ticks(os.getpid())
    assert started is not None
    register(database, submit, os.getpid(), started=started - 1)
    start(NEW)
    assert is_taken_back(database)


@pytest.mark.parametrize("namespace", [None, "another boot pid:[1]"])
def test_a_pid_of_another_namespace_says_nothing(
    database: Database, submit: Submit, start: Enter, namespace: str | None
) -> None:
    """Two containers with one hostname: the pid of one is free, or another program's, in the other."""
    with another_process() as process:
        process.kill()
        process.wait()
        register(database, submit, process.pid, started=1, namespace=namespace)
        start(NEW)
    assert not is_taken_back(database)
    with database.write() as session:
        assert workers.expire(session, -1.0) == 2, "the heartbeat decides"


def test_without_proc_the_heartbeat_decides(
    database: Database, submit: Submit, start: Enter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_identity, "pid_namespace", lambda: None)
    for namespace in (None, HERE):
        with another_process() as process:
            process.kill()
            process.wait()
            register(database, submit, process.pid, started=1, namespace=namespace)
            start(NEW)
        with database.read() as session:
            assert not leasing.with_work(session)


def test_proc_of_another_namespace_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 1)
    assert process_identity.pid_namespace() is None
