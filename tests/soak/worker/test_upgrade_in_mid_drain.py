"""The database is upgraded while a worker of the version before drains a job.

The code under test is the version before. The version after is a made-up migration of every kind that the
rule of `storage.migrate` allows.
"""

import dataclasses
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from actograph.contract.resources import JobStatus, SampleStatus
from storage import migrate
from storage.index.database import Database

if TYPE_CHECKING:
    from tests.integration.worker.conftest import Bench

pytestmark = pytest.mark.integration

NEXT_VERSION = """
import sqlalchemy as sa
from alembic import op

revision = "9000"
down_revision = "{head}"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("samples", sa.Column("of_the_next_version", sa.JSON(), nullable=True))
    op.add_column("jobs", sa.Column("counted", sa.Integer(), server_default="0", nullable=False))
    op.create_table(
        "of_the_next_version",
        sa.Column("job_id", sa.String(64), sa.ForeignKey("jobs.id", ondelete="CASCADE"), primary_key=True),
    )
"""
ITS_INDEX = """
from storage.index.migrations import indexes

revision = "9001"
down_revision = "9000"
branch_labels = None
depends_on = None


def upgrade() -> None:
    indexes.create("ix_samples_of_the_next_version", "samples", ["job_id", "finished_at"])
"""


@pytest.fixture
def next_version(tmp_path: Path) -> tuple[Path, ...]:
    """Folders of migrations: those of this version, and those of the next."""
    folder = tmp_path / "next_version"
    folder.mkdir()
    (folder / "9000_next.py").write_text(NEXT_VERSION.format(head=migrate.head()))
    (folder / "9001_index.py").write_text(ITS_INDEX)
    return (migrate.MIGRATIONS, folder)


@pytest.fixture(params=["sqlite", "postgres"])
def index(request: pytest.FixtureRequest, bench: "Bench") -> "Bench":
    if request.param == "sqlite":
        return bench
    database = Database(request.getfixturevalue("new_postgres")())
    migrate.upgrade(database)
    request.addfinalizer(database.close)
    return dataclasses.replace(bench, database=database)


def completed(bench: "Bench", job_id: str) -> list[str]:
    return [s.id for s in bench.samples(job_id) if s.status is SampleStatus.COMPLETED]


def test_a_worker_of_the_version_before_drains_on(index: "Bench", next_version: tuple[Path, ...]) -> None:
    job_id = index.submit(epochs=12, capture={"points": ["resid_post"], "layers": [1]})
    drain = index.drain(batch_size=2)
    worker = threading.Thread(target=drain.run_slice, args=(job_id,))
    worker.start()
    deadline = time.monotonic() + 120
    while not (before := completed(index, job_id)):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    upgrader = Database(index.database.url.render_as_string(hide_password=False))
    migrate.upgrade(upgrader, versions=next_version)
    assert migrate.current(upgrader) == "9001"
    upgrader.close()
    during = completed(index, job_id)
    worker.join(120)
    assert not worker.is_alive()
    assert index.status(job_id) is JobStatus.COMPLETED
    done = index.samples(job_id)
    assert len(before) <= len(during) < len(done) == 60, "the upgrade came in mid-drain"
    assert {(s.status, s.attempts) for s in done} == {(SampleStatus.COMPLETED, 1)}
    assert {s.session_id for s in done} == index.indexed_sessions() == index.stored_sessions()

    # a worker of the version before may also start now
    migrate.require_current(index.database)
    again = index.submit(capture={"points": ["resid_post"], "layers": [1]})
    index.drain("wrk_" + "1" * 32).run_slice(again)
    assert index.status(again) is JobStatus.COMPLETED
    with index.database.engine.connect() as connection:
        assert set(connection.execute(sa.text("SELECT counted FROM jobs")).scalars()) == {0}
