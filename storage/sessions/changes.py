"""Delete, expire and change many sessions at once."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.specs import SessionUpdate
from storage.index import counters, deletions, events
from storage.index.database import Database, now
from storage.jobs.session_removal import Count, hold_jobs, lock, remove
from storage.sessions.filter import SessionFilter
from storage.sessions.sessions import ids
from storage.tables.models import SessionRow, SessionTagRow

__all__ = ["Count", "deletable", "delete_matching", "expire", "expired", "update", "update_matching"]

#: sessions that one transaction deletes or changes
BATCH = 500


def deletable(wanted: SessionFilter, *, include_pinned: bool) -> SessionFilter:
    """The filter of sessions that may be deleted."""
    return wanted if include_pinned else replace(wanted, pinned=False)


def delete_matching(database: Database, wanted: SessionFilter, *, include_pinned: bool = False) -> Count:
    """Delete all matching sessions, or none. Pinned sessions stay by default.

    A few rows are deleted at once. Many are hidden at once and deleted in the background.
    """
    going = deletable(wanted, include_pinned=include_pinned)
    guard = () if include_pinned else (SessionRow.pinned == sa.false(),)
    with database.write() as session:
        matching = ids(session, going, limit=BATCH + 1)
        if len(matching) <= BATCH:
            gone = Count.of(remove(session, matching, *guard, *deletions.VISIBLE))
        else:
            sizes = deletions.list_sessions(session, going.narrow(sa.select(SessionRow.id)))
            gone = Count(len(sizes), sum(sizes))
        counters.add_removed(session, "deleted", sessions=gone.sessions, size=gone.bytes)
    return gone


def expire(database: Database, *, limit: int = BATCH) -> Count:
    """Delete up to `limit` expired sessions that are not pinned, and log it in their jobs."""
    with database.read() as session:
        due = _expired(session)
        matching = session.scalars(
            sa.select(SessionRow.id).where(*due).order_by(SessionRow.expires_at).limit(limit)
        ).all()
    if not matching:
        return Count()
    with database.write() as session:
        # a session that was pinned or extended meanwhile stays
        removed = remove(session, matching, *due)
        gone = Count.of(removed)
        counters.add_removed(session, "expired", sessions=gone.sessions, size=gone.bytes)
        for job_id, count in Counter(one.job_id for one in removed).items():
            size = sum(one.bytes for one in removed if one.job_id == job_id)
            events.append(session, job_id, "sessions.expired", {"sessions": count, "bytes": size})
    return gone


def expired(session: Session) -> Count:
    """Number and size of all sessions that `expire` would delete now."""
    row = session.execute(
        sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(SessionRow.bytes), 0)).where(
            *_expired(session)
        )
    ).one()
    return Count(row[0], int(row[1]))


def update(session: Session, session_ids: Sequence[str], change: SessionUpdate) -> int:
    """Apply a change to sessions. Returns the number of existing ones."""
    values = {
        name: getattr(change, name) for name in ("expires_at", "pinned") if name in change.model_fields_set
    }
    hold_jobs(session, session_ids)
    # ownership does not narrow the INSERT of tags below, so only ids that were read are written
    held = lock(session, session_ids)
    held = session.scalars(sa.select(SessionRow.id).where(SessionRow.id.in_(held), *deletions.VISIBLE)).all()
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
    for batch in _batches(matching):
        with database.write() as session:
            count += update(session, batch, change)
    return count


def _expired(session: Session) -> tuple[sa.ColumnElement[bool], ...]:
    """Condition of expired sessions."""
    return SessionRow.expires_at <= now(session), SessionRow.pinned == sa.false(), *deletions.visible(session)


def _batches(session_ids: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(session_ids), BATCH):
        yield session_ids[start : start + BATCH]
