"""A worker as a process of its own: a lost device, and a Redis that is lost."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from actograph.contract.resources import JobStatus
from storage.broker.broker import Broker
from storage.index.database import Database
from storage.jobs import jobs
from storage.tables.models import SampleRow, WorkerRow
from tests.support.submitting import insert_capture

if TYPE_CHECKING:
    from tests.integration.conftest import RedisProcess

pytestmark = pytest.mark.integration

REPO = Path(__file__).resolve().parents[3]
MODEL = "null"
UNIT_SAMPLES = 4


@pytest.fixture
def database(sqlite: Database) -> Database:
    return sqlite


class Worker:
    """A worker's process and what it writes."""

    def __init__(self, home: Path, broker_url: str, module: str, **environment: str) -> None:
        self._log = home / "worker.log"
        self._environment = {
            **os.environ,
            "ACTOGRAPH_HOME": str(home),
            "ACTOGRAPH_BROKER_URL": broker_url,
            "ACTOGRAPH_MODEL": f"{MODEL}=null/null",
            "ACTOGRAPH_DISK_FLOOR_BYTES": "0",
            "ACTOGRAPH_IDLE_POLL_SECONDS": "0.5",
            "ACTOGRAPH_LEASE_SECONDS": "30",
            "BENCH_UNIT_SAMPLES": str(UNIT_SAMPLES),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(REPO),
            **environment,
        }
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", module], cwd=home, env=self._environment, stdout=log, stderr=log
            )

    @property
    def log(self) -> str:
        return self._log.read_text(encoding="utf-8")

    def end(self) -> int:
        """SIGTERM; the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(120)


Start = Callable[..., Worker]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    made: list[Worker] = []

    def run(broker_url: str, module: str = "tests.support.null_worker", **environment: str) -> Worker:
        made.append(Worker(tmp_path, broker_url, module, **environment))
        return made[-1]

    yield run
    for worker in made:
        if worker.process.poll() is None:
            worker.process.kill()
            worker.process.wait()


def submit(database: Database, prompts: list[str], **changes: Any) -> str:
    return insert_capture(
        database, prompts, **{"model": MODEL, "capture": None, "sampling": {"max_tokens": 2}} | changes
    )


def wait_for(condition: Callable[[], bool], worker: Worker) -> None:
    deadline = time.monotonic() + 400
    while not condition():
        assert time.monotonic() < deadline, worker.log[-4000:]
        assert worker.process.poll() is None, worker.log[-4000:]
        time.sleep(0.05)


def completed(database: Database, job_id: str) -> int:
    with database.read() as session:
        return jobs.get(session, job_id).completed


def is_completed(database: Database, job_id: str) -> bool:
    with database.read() as session:
        return jobs.status_of(session, job_id) is JobStatus.COMPLETED


def test_a_lost_device_costs_its_engine_and_only_the_sample_at_fault_fails(
    database: Database, start: Start, redis_url: str
) -> None:
    job_id = submit(database, ["one", "two", "poison", "four", "five", "six"])
    worker = start(redis_url, "tests.soak.worker.failing_worker")
    wait_for(lambda: is_completed(database, job_id), worker)
    with database.read() as session:
        rows = session.scalars(
            sa.select(SampleRow).where(SampleRow.job_id == job_id).order_by(SampleRow.position)
        ).all()
        assert [row.status for row in rows] == ["completed"] * 2 + ["failed"] + ["completed"] * 3
        error = rows[2].error
        assert error is not None
        assert error["type"] == "device_lost"
        assert "device-side assert" in error["message"]
        processes = session.scalars(sa.select(WorkerRow.pid)).all()
    assert processes == [worker.process.pid], "the worker itself goes on"
    assert worker.log.count("CRITICAL") == 4, "twice together, then beside few, then alone"
    assert worker.end() == 0


def test_a_drain_goes_on_while_redis_is_down_and_goes_by_messages_afterwards(
    database: Database, start: Start, redis_process: "Callable[[], RedisProcess]"
) -> None:
    server = redis_process()
    worker = start(server.url, BENCH_UNIT_SECONDS="0.05")
    long = submit(database, ["word"] * 20_000)  # at least 250 seconds of work
    wait_for(lambda: completed(database, long) >= 2 * UNIT_SAMPLES, worker)
    server.stop()
    so_far = completed(database, long)
    wait_for(lambda: completed(database, long) >= so_far + 10 * UNIT_SAMPLES, worker)
    urgent = submit(database, ["now"], priority=0)
    wait_for(lambda: is_completed(database, urgent), worker)
    assert not is_completed(database, long)
    server.start()
    broker = Broker(server.url)
    again = submit(database, ["again"], priority=0)
    wait_for(lambda: broker.wake(MODEL), worker)
    wait_for(lambda: is_completed(database, again), worker)
    wait_for(lambda: broker.messages() == 0, worker)  # the worker reads them again
    broker.close()
    assert worker.end() == 0
    with database.read() as session:
        left = session.scalars(sa.select(SampleRow.status).where(SampleRow.job_id == long).distinct()).all()
    assert set(left) == {"completed", "pending"}, "nothing stays leased"


def test_a_worker_without_redis_and_api_runs_jobs(database: Database, start: Start) -> None:
    job_id = submit(database, ["word"] * 3)
    worker = start("redis://127.0.0.1:1/0")
    wait_for(lambda: is_completed(database, job_id), worker)
    assert worker.end() == 0
