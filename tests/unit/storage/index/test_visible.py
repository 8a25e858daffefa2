"""Rows of other owners and hidden rows do not exist, in whatever form a statement names them."""

from collections.abc import Callable

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session, aliased

from actograph.contract.job_specs import CaptureJobSpec
from storage.index import visible
from storage.index.database import Database
from storage.index.visible import Unnarrowable, of_everyone
from storage.jobs import control, jobs
from storage.tables.models import EventRow, JobRow, JobTagRow, SampleRow, SessionRow
from tests.support import leasing
from tests.support.submitting import insert

MakeSpec = Callable[..., CaptureJobSpec]
_ALIAS = aliased(JobRow)


@pytest.fixture
def own(database: Database, capture_spec: MakeSpec) -> dict[str, str]:
    """Owner -> a job with a claimed sample."""
    made = {}
    for owner in ("alice", "bob"):
        made[owner] = insert(database, capture_spec(tags=["t"]), owner=owner)
    return made


#: statements about the jobs that a session sees: their ids, or the number of rows
READS: dict[str, sa.Select[str]] = {
    "class": sa.select(JobRow.id),
    "alias": sa.select(_ALIAS.id),
    "join with an alias": sa.select(SampleRow.job_id).join(_ALIAS, _ALIAS.id == SampleRow.job_id),
    "samples": sa.select(SampleRow.job_id),
    "alias of samples": sa.select(aliased(SampleRow).job_id),
    "events": sa.select(EventRow.job_id),
    "tags": sa.select(JobTagRow.job_id),
    "subquery": sa.select(SampleRow.job_id).where(SampleRow.job_id.in_(sa.select(JobRow.id))),
    "exists": sa.select(SampleRow.job_id).where(sa.exists().where(JobRow.id == SampleRow.job_id)),
    "union": sa.union(sa.select(JobRow.id), sa.select(SampleRow.job_id)).subquery().select(),
}


def everywhere(*owners: str) -> dict[str, set[str]]:
    return {name: set(owners) for name in READS}


def seen(session: Session, own: dict[str, str]) -> dict[str, set[str]]:
    names = {job_id: owner for owner, job_id in own.items()}
    return {name: {names[one] for one in session.scalars(read)} for name, read in READS.items()}


def test_every_statement_is_narrowed_to_the_owner(database: Database, own: dict[str, str]) -> None:
    with database.restricted_to("alice").write() as session:
        assert seen(session, own) == everywhere("alice")
        assert session.get(JobRow, own["bob"]) is None
        for change in (sa.update(JobRow).values(priority=1), sa.delete(JobTagRow)):
            assert session.execute(change).rowcount == 1  # type: ignore[attr-defined]

        @of_everyone
        def count(session: Session) -> int:
            return len(session.scalars(sa.select(JobRow)).all())

        assert count(session) == 2
        assert session.get(JobRow, own["bob"]) is None, "rows read for everyone are forgotten"


def test_a_statement_that_cannot_be_narrowed_is_refused(
    database: Database, own: dict[str, str], subtests: pytest.Subtests
) -> None:
    plain = JobRow.__table__
    statements: dict[str, sa.Executable] = {
        "text": sa.text("SELECT id FROM jobs"),
        "text of a class": sa.select(JobRow).from_statement(sa.text("SELECT * FROM jobs")),
        "table": sa.select(plain.c.id),
        "alias of a table": sa.select(plain.alias().c.id),
        "table in a subquery": sa.select(SampleRow.id).where(SampleRow.job_id.in_(sa.select(plain.c.id))),
        "table beside its class": sa.select(JobRow.id, sa.select(plain.c.owner).limit(1).scalar_subquery()),
    }
    for name, statement in statements.items():
        restricted = database.restricted_to("alice").read()
        with subtests.test(name=name), restricted as session, pytest.raises(Unnarrowable):
            session.execute(statement)
    with database.read() as session:
        assert session.execute(sa.select(sa.func.count()).select_from(plain)).scalar_one() == 2


def test_hidden_rows_are_seen_only_by_who_asks(database: Database, own: dict[str, str]) -> None:
    with database.write() as session:
        (lease,) = leasing.claim(session, own["bob"], worker_id="w", count=1)
        session.execute(sa.update(JobRow).values(status="completed"))
        announced = sa.select(sa.func.count()).select_from(SessionRow)
        assert session.scalar(announced) == 0
        control.delete(session, own["bob"])
        assert seen(session, own) == everywhere("alice")
        with visible.hidden_too(session):
            assert seen(session, own) == everywhere("alice", "bob")
            assert session.scalar(announced) == 1
            assert session.get(JobRow, own["bob"]) is not None
        assert session.get(JobRow, own["bob"]) is None
        assert session.get(SessionRow, lease.session_id) is None
    with database.restricted_to("alice").read() as session, visible.hidden_too(session):
        assert seen(session, own) == everywhere("alice"), "asking shows no other owner's"


def test_an_owner_may_do_all_that_a_service_does_with_a_job(database: Database, own: dict[str, str]) -> None:
    """No statement on the way is one to which no owner can be added."""
    restricted, job = database.restricted_to("alice"), own["alice"]
    with restricted.write() as session:
        assert jobs.cancel(session, job).status == "cancelled"
    with restricted.write() as session:
        assert control.retry(session, job).status == "queued"
    assert control.cancel_matching(restricted, {}) == 1
    with restricted.write() as session:
        control.delete(session, job)
        assert jobs.find(session, {}, limit=10)[0] == []
    with database.read() as session:
        assert jobs.get(session, own["bob"]).status == "queued"
