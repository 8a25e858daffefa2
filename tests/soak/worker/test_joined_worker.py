"""`actograph worker`: joins the index and the store from a process of its own, without a broker."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from actograph.contract.resources import JobStatus
from actograph.demo import MODEL_DIR
from storage.index import deployment
from storage.index.database import Database
from storage.jobs import jobs
from storage.tables.models import SampleRow
from tests.support.submitting import insert_capture
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration

REPO = Path(__file__).resolve().parents[3]
MODEL = "tiny-qwen3"


@pytest.fixture
def index(postgres_url: str, tmp_path: Path) -> Iterator[Database]:
    database = Database(postgres_url)
    deployment.mark_store(database, (tmp_path / "store").as_uri())  # as the API does
    yield database
    database.close()


Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(postgres_url: str, tmp_path: Path) -> Iterator[Start]:
    made: list[subprocess.Popen[str]] = []

    def run(*options: str, url: str = postgres_url) -> "subprocess.Popen[str]":
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ACTOGRAPH_")}
        environment |= {
            "PYTHONPATH": str(REPO),
            "ACTOGRAPH_DATABASE_URL": url,
            "ACTOGRAPH_DISK_FLOOR_BYTES": "0",
            "ACTOGRAPH_DEVICE": "cpu",
            "ACTOGRAPH_IDLE_POLL_SECONDS": "0.5",
            "OMP_NUM_THREADS": "1",
        }
        made.append(
            subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "actograph.cli.main",
                    "worker",
                    f"--model={MODEL}={MODEL_DIR}",
                    f"--artifact-url={(tmp_path / 'store').as_uri()}",
                    *options,
                ],
                cwd=tmp_path,
                env=environment,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return made[-1]

    yield run
    for process in made:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_a_worker_drains_and_exits_by_itself(index: Database, start: Start) -> None:
    job_id = insert_capture(index, "abcd", model=MODEL)
    process = start("--drain")
    _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert "no job of tiny-qwen3 is open" in said
    with index.read() as session:
        assert jobs.status_of(session, job_id) is JobStatus.COMPLETED


@pytest.mark.usefixtures("index")
def test_an_idle_worker_exits(start: Start) -> None:
    process = start("--max-idle", "0.5")
    _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said


def test_sigterm_gives_back_within_the_grace(index: Database, start: Start) -> None:
    job_id = insert_capture(index, "abcdefgh" * 8, model=MODEL, sampling={"max_tokens": 1500})
    process = start("--grace", "2")

    def states() -> set[tuple[str, bool]]:
        with index.read() as session:
            rows = session.query(SampleRow.status, SampleRow.worker_id).where(SampleRow.job_id == job_id)
            return {(row.status, row.worker_id is not None) for row in rows}

    wait_until(lambda: any(status == "leased" or held for status, held in states()))
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert {status for status, _ in states()} <= {"pending", "completed"}
    with index.read() as session:
        losses = session.query(SampleRow.losses).where(SampleRow.job_id == job_id).distinct().all()
    assert [tuple(row) for row in losses] == [(0,)], "a stop is no loss"


def test_an_index_that_does_not_answer_is_one_line(start: Start) -> None:
    process = start(url="postgresql://nobody@127.0.0.1:9/none")
    _, said = process.communicate(timeout=200)
    assert process.returncode == 1
    assert said.splitlines()[-1].startswith("worker: the index does not answer")
    assert "Traceback" not in said
