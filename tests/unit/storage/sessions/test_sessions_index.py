"""The index of sessions: search and totals."""

from collections.abc import Callable

from storage.index.database import Database
from storage.sessions import sessions
from storage.sessions.sessions import SessionFilter
from tests.support import leasing
from tests.support.samples import session_of

Submit = Callable[..., str]


def insert(
    database: Database, job_id: str, *, model: str = "demo", condition: str = "", correct: bool | None = None
) -> str:
    """A session of the job's next sample without one."""
    with database.write() as session:
        (lease,) = leasing.claim(session, job_id, worker_id="w", count=1)
        new = session_of(lease, model=model, condition=condition, correct=correct, tags=lease.tags)
        sessions.publish(session, new)
    return new.id


def found(database: Database, **wanted: object) -> list[str]:
    with database.read() as session:
        condition = SessionFilter(**wanted)  # type: ignore[arg-type]
        rows, _ = sessions.find(session, condition, limit=100, order="asc")
        ids = [row.id for row in rows]
        assert sessions.ids(session, condition) == ids
        assert sessions.totals(session, condition).sessions == len(ids)
        return ids


def test_each_filter_takes_what_fits_and_they_are_joined(database: Database, submit: Submit) -> None:
    night, plain = submit(2, tags=["night", "x"]), submit()
    a = insert(database, night, condition="base", correct=True)
    b = insert(database, night, model="other", correct=False)
    c = insert(database, plain)
    assert found(database) == [a, b, c]
    assert found(database, job_id=night) == [a, b]
    assert found(database, tag="night") == [a, b]
    assert [found(database, id_prefix=one[:20]) for one in (a, b, c)] == [[a], [b], [c]]
    assert found(database, id_prefix=a, job_id=plain) == []
    assert found(database, tag="none") == []
    assert found(database, model="other") == [b]
    assert found(database, condition="base") == [a]
    assert found(database, sample_index=0) == [a, c]
    assert found(database, correct=True) == [a]
    assert found(database, correct=False) == [b]
    assert found(database, tag="night", correct=True, model="other") == []
    with database.read() as session:
        moment = sessions.get(session, b).created_at
    assert found(database, created_after=moment) == [c]
    assert found(database, created_before=moment) == [a]
