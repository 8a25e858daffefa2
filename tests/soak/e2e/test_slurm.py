"""deploy/slurm.sbatch on a real Slurm of one node: an array drains a job, through kills and requeues."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from actograph.contract.resources import JobStatus, SampleStatus
from actograph.demo import MODEL_DIR
from storage.artifacts.local import LocalStore
from storage.index import deployment
from storage.index.database import Database
from storage.jobs import jobs
from storage.sessions import sessions
from storage.tables.models import SampleRow
from tests.support.availability import unavailable
from tests.support.servers import Unavailable
from tests.support.servers.slurm import Slurm
from tests.support.submitting import insert_capture
from tests.support.waiting import wait_until

pytestmark = pytest.mark.integration

REPO = Path(__file__).resolve().parents[3]
MODEL = "tiny-qwen3"
SAMPLES = 200


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[Slurm]:
    folder = tmp_path / "slurm"
    folder.mkdir()
    made = Slurm(folder)
    try:
        made.create()
    except Unavailable as error:
        unavailable(str(error))
    yield made
    made.remove()


@pytest.fixture
def index(postgres_url: str, tmp_path: Path) -> Iterator[Database]:
    database = Database(postgres_url)
    deployment.mark_store(database, (tmp_path / "store").as_uri())
    yield database
    database.close()


def submit(slurm: Slurm, folder: Path, url: str) -> str:
    """Submit the script as its head says, with nothing that this machine lacks. Returns the array's id."""
    command = folder / "bin" / "actograph"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m actograph.cli.main "$@"\n')
    command.chmod(0o755)
    environment = {
        "PATH": f"{command.parent}:/usr/sbin:/usr/bin:/bin",
        "PYTHONPATH": str(REPO),
        "OMP_NUM_THREADS": "1",
        "ACTOGRAPH_MODEL": f"{MODEL}={MODEL_DIR}",
        "ACTOGRAPH_DATABASE_URL": url,
        "ACTOGRAPH_ARTIFACT_URL": (folder / "store").as_uri(),
        "ACTOGRAPH_DEVICE": "cpu",
        "ACTOGRAPH_SLOTS": "2",
        "ACTOGRAPH_DISK_FLOOR_BYTES": "0",
        "ACTOGRAPH_IDLE_POLL_SECONDS": "0.5",
        "GRACE": "5",
    }
    return slurm.run(
        "sbatch", "--parsable", "--array=1-2", "--gpus-per-task=0", "--cpus-per-task=1", "--mem=0",
        f"--output={folder}/%a.log", f"--chdir={folder}", str(REPO / "deploy/slurm.sbatch"),
        environment=environment,
    )  # fmt: skip


def restarts(slurm: Slurm, task: str) -> int:
    found = re.search(r"Restarts=(\d+)", slurm.run("scontrol", "show", "job", task))
    assert found is not None
    return int(found[1])


def test_an_array_loses_nothing_when_tasks_are_killed_and_queued_again(
    slurm: Slurm, index: Database, postgres_url: str, tmp_path: Path
) -> None:
    prompts = [f"how many are there of the {i} ones" for i in range(SAMPLES)]
    capture = {"points": ["resid_post"], "layers": [0]}
    job_id = insert_capture(index, prompts, model=MODEL, capture=capture, sampling={"max_tokens": 300})
    array = submit(slurm, tmp_path, postgres_url)

    def workers_that_run() -> int:
        with index.read() as session:
            is_leased = SampleRow.job_id == job_id, SampleRow.status == SampleStatus.LEASED
            return session.query(SampleRow.worker_id).where(*is_leased).distinct().count()

    def watch() -> None:
        assert "FAILED" not in slurm.states(array).values(), logs(tmp_path)

    wait_until(lambda: workers_that_run() == 2, watch)
    # the signal before the time limit: what runs is given back, and the task is queued again
    slurm.run("scancel", "--signal=USR1", "--batch", f"{array}_2")
    wait_until(lambda: restarts(slurm, f"{array}_2") == 1)
    # a kill without warning
    slurm.run("scancel", "--signal=KILL", "--full", f"{array}_1")
    wait_until(lambda: slurm.states(array)["1"] in ("FAILED", "NODE_FAIL", "CANCELLED"))
    slurm.run("scontrol", "requeue", f"{array}_1")
    wait_until(lambda: restarts(slurm, f"{array}_1") == 1)
    for task in (1, 2):  # Slurm would wait for two minutes
        slurm.run("scontrol", "update", f"JobId={array}_{task}", "StartTime=now")
    wait_until(lambda: set(slurm.states(array).values()) == {"COMPLETED"})
    with index.read() as session:
        assert jobs.status_of(session, job_id) is JobStatus.COMPLETED, logs(tmp_path)
        states = session.query(SampleRow.status).where(SampleRow.job_id == job_id).all()
        stored = set(sessions.ids(session, sessions.SessionFilter(job_id=job_id)))
    assert [row.status for row in states] == [SampleStatus.COMPLETED] * SAMPLES
    assert len(stored) == SAMPLES
    assert stored <= {one.id for one in LocalStore(tmp_path / "store").list_prefixes("sessions")}


def logs(folder: Path) -> str:
    return "\n".join(path.read_text(errors="replace")[-3000:] for path in sorted(folder.glob("*.log")))
