"""The process of upkeep: `python -m storage.upkeep`."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from actograph.contract.resources import JobStatus
from storage.index.database import Database
from storage.jobs import jobs
from storage.upkeep import reconcile
from tests.support.indexes import write_index
from tests.support.submitting import insert_capture

pytestmark = pytest.mark.integration
REPO = Path(__file__).resolve().parents[3]


def test_the_process_works_alone_and_ends_in_order(
    tmp_path: Path, eventually: Callable[[Callable[[], bool]], None]
) -> None:
    write_index(tmp_path / "actograph.db")
    database = Database(f"sqlite:///{tmp_path / 'actograph.db'}")
    job_id = insert_capture(database, "a", deadline_seconds=1000)
    with database.write() as session:
        jobs.lock(session, job_id).deadline_at = 1.0
        assert reconcile.age(session) == float("inf")
    environment = os.environ | {"ACTOGRAPH_HOME": str(tmp_path), "ACTOGRAPH_RECONCILE_SECONDS": "0.1"}
    environment["ACTOGRAPH_BROKER_URL"] = "redis://127.0.0.1:1/0"  # it needs none
    process = subprocess.Popen([sys.executable, "-m", "storage.upkeep"], env=environment, cwd=REPO)

    def has_failed() -> bool:
        with database.read() as session:
            return jobs.status_of(session, job_id) is JobStatus.FAILED

    try:
        eventually(has_failed)
        with database.read() as session:
            assert reconcile.age(session) < 60
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        database.close()


def test_it_says_in_one_line_why_it_cannot_work(tmp_path: Path) -> None:
    environment = os.environ | {"ACTOGRAPH_HOME": str(tmp_path)}
    ended = subprocess.run(
        [sys.executable, "-m", "storage.upkeep"],
        env=environment,
        cwd=REPO,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert "run: actograph service migrate" in ended.stderr.splitlines()[-1]
