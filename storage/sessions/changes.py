"""Delete, expire and change sessions.

A deleted session is hidden at once; `storage.upkeep.reaper` removes its files and then its row.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.errors import Conflict, InvalidRequest, NotFound
from actograph.contract.resources import SessionScores
from actograph.contract.specs import SessionUpdate
from storage.index import counters, events, visible
from storage.index.database import Database, now
from storage.index.ids import slices
from storage.index.pages import full_id
from storage.jobs import jobs
from storage.sessions.filter import SessionFilter
from storage.sessions.sessions import get, ids
from storage.tables.models import JobRow, SampleRow, SessionRow, SessionTagRow

#: sessions that one transaction expires or changes
BATCH = 500


@dataclass(frozen=True, slots=True)
class Count:
    """Number and size of sessions."""

    sessions: int = 0
    bytes: int = 0

    def __add__(self, other: "Count") -> "Count":
        return Count(self.sessions + other.sessions, self.bytes + other.bytes)


def delete(session: Session, session_id: str) -> None:
    """Delete a session.

    Raises:
        NotFound: no such session.
        Conflict: it is pinned.
    """
    _lock(session, [session_id])
    if get(session, session_id).pinned:
        raise Conflict(f"session {session_id} is pinned; unpin it first")
    _hide(session, "deleted", sa.select(SessionRow.id).where(SessionRow.id == session_id))


def deletable(wanted: SessionFilter, *, include_pinned: bool) -> SessionFilter:
    """The filter of sessions that may be deleted."""
    return wanted if include_pinned else wanted.model_copy(update={"pinned": False})


def delete_matching(database: Database, wanted: SessionFilter, *, include_pinned: bool = False) -> Count:
    """Delete all matching sessions, or none. Pinned sessions stay by default."""
    going = deletable(wanted, include_pinned=include_pinned)
    with database.write() as session:
        gone = _hide(session, "deleted", going.narrow(sa.select(SessionRow.id)))
    return sum(gone.values(), Count())


def expire(database: Database, *, limit: int = BATCH) -> Count:
    """Delete up to `limit` expired sessions that are not pinned, and log it in their jobs."""
    with database.read() as session:
        due = sa.select(SessionRow.id).where(*_expired(session)).order_by(SessionRow.expires_at).limit(limit)
        matching = session.scalars(due).all()
    if not matching:
        return Count()
    with database.write() as session:
        _lock(session, matching)
        # a session that was pinned or extended meanwhile stays
        still = sa.select(SessionRow.id).where(SessionRow.id.in_(matching), *_expired(session))
        gone = _hide(session, "expired", still)
        for job_id, count in gone.items():
            of_job = {"sessions": count.sessions, "bytes": count.bytes}
            events.append(session, job_id, "sessions.expired", of_job)
    return sum(gone.values(), Count())


def expired(session: Session) -> Count:
    """Number and size of all sessions that `expire` would delete now."""
    size = sa.func.coalesce(sa.func.sum(SessionRow.bytes), 0)
    row = session.execute(sa.select(sa.func.count(), size).where(*_expired(session))).one()
    return Count(row[0], int(row[1]))


def update(session: Session, session_ids: Sequence[str], change: SessionUpdate) -> int:
    """Apply a change to sessions. Returns the number of existing ones."""
    values = {
        name: getattr(change, name) for name in ("expires_at", "pinned") if name in change.model_fields_set
    }
    # the owner does not narrow the INSERT of tags below, so only ids that were read are written
    held = _lock(session, session_ids)
    chosen = SessionRow.id.in_(held)
    if values:
        session.execute(sa.update(SessionRow).where(chosen).values(**values))
    if "tags" in change.model_fields_set:
        session.execute(sa.delete(SessionTagRow).where(SessionTagRow.session_id.in_(held)))
        for tag in dict.fromkeys(change.tags):
            session.execute(
                sa.insert(SessionTagRow).from_select(
                    ["session_id", "tag", "created_at"],
                    sa.select(SessionRow.id, sa.literal(tag), SessionRow.created_at).where(chosen),
                )
            )
    return len(held)


def update_matching(database: Database, wanted: SessionFilter, change: SessionUpdate) -> int:
    """Apply a change to the sessions that match at the start. Returns their number."""
    with database.read() as session:
        matching = ids(session, wanted)
    count = 0
    for batch in slices(matching, BATCH):
        with database.write() as session:
            count += update(session, batch, change)
    return count


def score(session: Session, given: Sequence[SessionScores]) -> None:
    """Add scores by another program to the samples of sessions, and its verdicts to the sessions.

    Raises:
        NotFound: a session does not exist.
        InvalidRequest: a session is an evaluation's, all of whose samples have the same scorers.
    """
    by_id = {full_id(session, one.session_id, "ses"): one for one in given}
    if len(by_id) < len(given):
        raise InvalidRequest("a session is named twice; give all its scores together", param="sessions")
    if missing := by_id.keys() - set(_lock(session, list(by_id))):
        raise NotFound(f"no session {min(missing)}")
    statement = (
        sa.select(SessionRow.id, SampleRow.id.label("sample"), SampleRow.scores, JobRow.kind)
        .join(SampleRow, SampleRow.id == SessionRow.sample_id)
        .join(JobRow, JobRow.id == SessionRow.job_id)
        .where(SessionRow.id.in_(by_id))
    )
    scored, judged = [], []
    for row in session.execute(statement).all():
        if row.kind == "evaluation":
            raise InvalidRequest(f"session {row.id} is of an evaluation; score it by rescoring its job")
        new = by_id[row.id]
        scores = (row.scores or {}) | {key: score.model_dump() for key, score in new.scores.items()}
        scored.append({"sample": row.sample, "new_scores": scores})
        if new.correct is not None:
            judged.append({"session": row.id, "verdict": new.correct})
    of_sample = sa.update(SampleRow).where(SampleRow.id == sa.bindparam("sample"))
    new_scores = sa.bindparam("new_scores", type_=SampleRow.scores.type)
    session.connection().execute(of_sample.values(scores=new_scores), scored)
    if judged:
        of_session = sa.update(SessionRow).where(SessionRow.id == sa.bindparam("session"))
        session.connection().execute(of_session.values(correct=sa.bindparam("verdict")), judged)


def _hide(session: Session, reason: str, chosen: sa.Select[str]) -> dict[str, Count]:
    """Hide the sessions whose ids a statement selects. Returns their number and size by job."""
    moment = now(session)
    # all transactions lock sessions in the order of their ids
    held = chosen.order_by(SessionRow.id).with_for_update(of=SessionRow)
    hidden = sa.update(SessionRow).where(SessionRow.id.in_(held)).values(visible.deleted(moment))
    session.execute(hidden.execution_options(synchronize_session=False))
    # one row per job; RETURNING would return one per session
    sums = sa.select(SessionRow.job_id, sa.func.count(), sa.func.sum(SessionRow.bytes))
    with visible.hidden_too(session):
        found = session.execute(
            sums.where(SessionRow.removal_due_at == moment).group_by(SessionRow.job_id)
        ).all()
    gone = {job_id: Count(count, int(size)) for job_id, count, size in found}
    total = sum(gone.values(), Count())
    counters.add_removed(session, reason, sessions=total.sessions, size=total.bytes)
    return gone


def _lock(session: Session, session_ids: Sequence[str]) -> Sequence[str]:
    """Lock the jobs of sessions and then the sessions. Returns the ids of the existing ones."""
    of_sessions = sa.select(SessionRow.job_id).where(SessionRow.id.in_(session_ids)).distinct()
    jobs.lock_unread(session, session.scalars(of_sessions).all())
    statement = sa.select(SessionRow.id).where(SessionRow.id.in_(session_ids)).order_by(SessionRow.id)
    return session.scalars(statement.with_for_update(of=SessionRow)).all()


def _expired(session: Session) -> tuple[sa.ColumnElement[bool], ...]:
    """Condition of expired sessions."""
    return SessionRow.expires_at <= now(session), SessionRow.pinned == sa.false()
