"""The index of sessions: search, totals, deletion."""

from collections.abc import Callable

import pytest
import sqlalchemy as sa

from actograph.contract.errors import NotFound
from actograph.contract.resources import SessionFile, TensorInfo
from storage import samples
from storage.index.database import Database
from storage.index.ids import new_session_id
from storage.sessions import sessions
from storage.sessions.sessions import NewSession, SessionFilter
from storage.tables.models import ArtifactRow, SampleRow, SessionRow

Submit = Callable[..., str]


def insert(
    database: Database, job_id: str, *, model: str = "demo", condition: str = "", correct: bool | None = None
) -> str:
    """A session of the job's next sample without one."""
    with database.write() as session:
        used = sa.select(SessionRow.sample_id)
        sample = session.scalars(
            sa.select(SampleRow)
            .where(SampleRow.job_id == job_id, SampleRow.id.not_in(used))
            .order_by(SampleRow.position)
            .limit(1)
        ).one()
        new = NewSession(
            id=new_session_id(),
            job_id=job_id,
            sample_id=sample.id,
            sample_index=sample.sample_index,
            condition=condition,
            epoch=0,
            model=model,
            prompt_tokens=2,
            generated_tokens=3,
            rows=4,
            dtype="F32",
            hooks={"embed": TensorInfo(shape=(4, 8), dtype="F32", nbytes=128)},
            files=[
                SessionFile(name="manifest.json", bytes=10, sha256="1" * 64),
                SessionFile(name="activations.safetensors", bytes=200, sha256="2" * 64),
            ],
            correct=correct,
        )
        sessions.insert(session, new)
        sample.session_id = new.id
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


def test_a_deleted_session_leaves_its_sample(database: Database, submit: Submit) -> None:
    session_id = insert(database, submit())
    with database.write() as session:
        sample_id = sessions.get(session, session_id).sample_id
        sessions.delete(session, session_id)
    with database.read() as session:
        assert session_id not in sessions.ids(session, sessions.SessionFilter())
        assert samples.get(session, sample_id).session_id is None
        assert session.execute(sa.select(sa.func.count()).select_from(ArtifactRow)).scalar_one() == 0
    with pytest.raises(NotFound), database.write() as session:
        sessions.delete(session, session_id)
