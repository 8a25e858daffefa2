"""Delete rows of sessions, and schedule the deletion of their files."""

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.orm import Session

from storage.index import deletions
from storage.jobs import jobs
from storage.tables.models import ArtifactRow, SampleRow, SessionRow

#: id, sample_id, job_id, owner and bytes of a session whose row was deleted
Removed = sa.Row[str, str, str, str | None, int]


@dataclass(frozen=True, slots=True)
class Count:
    """Number and size of sessions."""

    sessions: int = 0
    bytes: int = 0

    def __add__(self, other: "Count") -> "Count":
        return Count(self.sessions + other.sessions, self.bytes + other.bytes)

    @classmethod
    def of(cls, removed: Sequence[Removed]) -> "Count":
        return cls(len(removed), sum(one.bytes for one in removed))


def hold_jobs(session: Session, session_ids: Sequence[str]) -> None:
    """Lock the jobs of sessions, before any change of these sessions."""
    of_sessions = sa.select(SessionRow.job_id).where(SessionRow.id.in_(session_ids)).distinct()
    jobs.lock_all(session, session.scalars(of_sessions).all())


def lock(session: Session, session_ids: Sequence[str], *where: sa.ColumnElement[bool]) -> Sequence[str]:
    """Lock sessions that meet the conditions. Returns their ids."""
    statement = sa.select(SessionRow.id).where(SessionRow.id.in_(session_ids), *where).order_by(SessionRow.id)
    return session.scalars(statement.with_for_update(of=SessionRow, key_share=True)).all()


def remove(session: Session, session_ids: Sequence[str], *where: sa.ColumnElement[bool]) -> Sequence[Removed]:
    """Delete the rows of sessions that meet the conditions, and their files in the background."""
    hold_jobs(session, session_ids)
    held = lock(session, session_ids, *where)
    stored = sa.select(ArtifactRow.session_id, ArtifactRow.name).where(ArtifactRow.session_id.in_(held))
    names: dict[str, list[str]] = {}
    for session_id, name in session.execute(stored):
        names.setdefault(session_id, []).append(name)
    removed = session.execute(
        sa.delete(SessionRow)
        .where(SessionRow.id.in_(held))
        .returning(SessionRow.id, SessionRow.sample_id, SessionRow.job_id, SessionRow.owner, SessionRow.bytes)
        .execution_options(synchronize_session=False)
    ).all()
    session.execute(
        sa.update(SampleRow)
        .where(
            SampleRow.id.in_([one.sample_id for one in removed]),
            SampleRow.session_id.in_([one.id for one in removed]),
        )
        .values(session_id=None)
        .execution_options(synchronize_session=False)
    )
    doomed = [
        {"id": one.id, "owner": one.owner, "bytes": one.bytes, "names": names.get(one.id)} for one in removed
    ]
    deletions.add(session, doomed)
    return removed
