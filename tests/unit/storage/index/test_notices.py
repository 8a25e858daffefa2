"""Notices of changed jobs: which changes send one, and that they come after the commit or not at all."""

from collections.abc import Callable, Sequence
from contextlib import suppress

import pytest
from sqlalchemy.orm import Session

from actograph.contract.errors import CaptureFailed
from actograph.contract.job_specs import CaptureJobSpec
from actograph.contract.model_loads import ModelLoadOptions
from storage.index import notices
from storage.index.database import Database
from storage.jobs import control, jobs
from storage.queue import leases, model_loads, pause
from storage.queue.commit import Ended
from storage.samples import NewSample
from storage.submission import bulk_insert
from tests.support import leasing

Submit = Callable[..., str]


@pytest.fixture
def heard(database: Database) -> list[Sequence[str]]:
    """Models of the notices, one entry for each transaction."""
    found: list[Sequence[str]] = []
    database.announce = found.append
    return found


def test_every_change_that_concerns_workers_sends_a_notice(
    database: Database,
    submit: Submit,
    capture_spec: Callable[..., CaptureJobSpec],
    heard: list[Sequence[str]],
    subtests: pytest.Subtests,
) -> None:
    running, cancelled, failed = submit(4), submit(2), submit(1)
    held = leasing.begin(database, running, 2)
    with database.write() as session:
        pause.start(session, by="me", reason=None)
    with database.write() as session:
        jobs.fail(session, failed, CaptureFailed("no"))

    def dataset(session: Session) -> None:
        jobs.get(session, running).total = None
        session.flush()
        jobs.set_total(session, running, 4)

    acts: dict[str, tuple[Callable[[Session], object], str]] = {
        "submission": (lambda session: jobs.create(session, capture_spec(), total=1), "demo"),
        "retry": (lambda session: control.retry(session, failed), "demo"),
        "cancel": (lambda session: jobs.cancel(session, cancelled), "demo"),
        "samples given back": (lambda session: leases.give_back(session, held), "demo"),
        "dataset read": (dataset, "demo"),
        "resume": (pause.end, notices.ALL),
        "load": (lambda session: model_loads.create(session, "other", ModelLoadOptions()), "other"),
    }
    for name, (act, model) in acts.items():
        heard.clear()
        with subtests.test(act=name):
            with database.write() as session:
                act(session)
            assert heard == [[model]]
    with subtests.test(act="large submission"):
        heard.clear()
        new = (
            NewSample(sample_index=i, condition="", epoch=0, input={"prompt": "a"}, seed=i)
            for i in range(bulk_insert.SLICE + 1)
        )
        bulk_insert.insert_job(database, capture_spec(), new, total=bulk_insert.SLICE + 1)
        assert heard[-1] == ["demo"], "its last transaction shows it"


def test_samples_on_their_way_send_none(
    database: Database, submit: Submit, heard: list[Sequence[str]]
) -> None:
    job_id = submit(3)
    heard.clear()
    for lease in leasing.begin(database, job_id, 3):
        with database.write() as session:
            leasing.end(session, Ended(lease=lease, error=CaptureFailed("no")))
    assert heard == [["demo"]], "that it has failed in the end"


def test_postgres_sends_notices_after_the_commit(postgres_url: str) -> None:
    database = Database(postgres_url)
    with notices.listen(database.url) as wait:
        with suppress(LookupError), database.write() as session:
            notices.note(session, "rolled back")
            raise LookupError
        with database.write() as session:
            notices.note(session, "demo")
            notices.note(session, "demo")
            assert list(wait(0.01)) == []
        assert list(wait(30)) == ["demo"]
        with database.write() as session:
            pause.end(session)
        assert list(wait(30)) == [notices.ALL]
    database.close()
