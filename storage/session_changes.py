"""Deleting, expiring and changing many sessions at once.

Rows go first and are committed, files after: a crash between the two leaves files that nothing refers
to, which `storage.sweep` finds. The other order would leave sessions that are listed and cannot be read.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.specs import SessionUpdate
from storage import counters, events, jobs
from storage.artifacts.store import ArtifactStore
from storage.database import Database, now
from storage.models import SampleRow, SessionRow, SessionTagRow
from storage.session_files import session_prefix
from storage.session_filter import SessionFilter
from storage.sessions import ids

#: sessions that one transaction deletes or changes
BATCH = 500


@dataclass(frozen=True, slots=True)
class Removed:
    """A session whose row is gone."""

    id: str
    sample_id: str
    job_id: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Count:
    sessions: int = 0
    bytes: int = 0

    def __add__(self, other: "Count") -> "Count":
        return Count(self.sessions + other.sessions, self.bytes + other.bytes)

    @classmethod
    def of(cls, removed: Sequence[Removed]) -> "Count":
        return cls(len(removed), sum(one.bytes for one in removed))


def deletable(wanted: SessionFilter, *, include_pinned: bool) -> SessionFilter:
    """The sessions of a filter that a deletion of many takes."""
    return wanted if include_pinned else replace(wanted, pinned=False)


def delete_matching(
    database: Database, store: ArtifactStore, wanted: SessionFilter, *, include_pinned: bool = False
) -> Count:
    """Delete the sessions that fit when this begins, with their files; those that are pinned stay."""
    with database.read() as session:
        found = ids(session, deletable(wanted, include_pinned=include_pinned))
    count = Count()
    guard = () if include_pinned else (SessionRow.pinned == sa.false(),)
    for batch in _batches(found):
        with database.write() as session:
            removed = _remove(session, batch, *guard)
            gone = Count.of(removed)
            counters.add_removed(session, "deleted", sessions=gone.sessions, size=gone.bytes)
        _delete_files(store, removed)
        count = count + gone
    return count


def expire(database: Database, store: ArtifactStore, *, limit: int = BATCH) -> Count:
    """Delete up to `limit` sessions whose time is over and that are not pinned; each job's log says so."""
    with database.read() as session:
        due = _expired(now(session))
        found = session.scalars(
            sa.select(SessionRow.id).where(*due).order_by(SessionRow.expires_at).limit(limit)
        ).all()
    if not found:
        return Count()
    with database.write() as session:
        # whoever pinned or prolonged one meanwhile keeps it
        removed = _remove(session, found, *due)
        gone = Count.of(removed)
        counters.add_removed(session, "expired", sessions=gone.sessions, size=gone.bytes)
        for job_id, count in Counter(one.job_id for one in removed).items():
            size = sum(one.bytes for one in removed if one.job_id == job_id)
            events.append(session, job_id, "sessions.expired", {"sessions": count, "bytes": size})
    _delete_files(store, removed)
    return gone


def expired(session: Session) -> Count:
    """What `expire` would delete now, all of it."""
    row = session.execute(
        sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(SessionRow.bytes), 0)).where(
            *_expired(now(session))
        )
    ).one()
    return Count(row[0], int(row[1]))


def update(session: Session, session_ids: Sequence[str], change: SessionUpdate) -> int:
    """Apply a change to those of these sessions that exist; returns their number."""
    values = {
        name: getattr(change, name) for name in ("expires_at", "pinned") if name in change.model_fields_set
    }
    _hold_jobs(session, session_ids)
    # the INSERT of tags below is not narrowed to an owner's rows, so only ids that were read are written
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
    """Apply a change to the sessions that fit when this begins; how many they were."""
    with database.read() as session:
        found = ids(session, wanted)
    count = 0
    for batch in _batches(found):
        with database.write() as session:
            count += update(session, batch, change)
    return count


def _expired(moment: float) -> tuple[sa.ColumnElement[bool], ...]:
    return (SessionRow.expires_at <= moment, SessionRow.pinned == sa.false())


def _hold_jobs(session: Session, session_ids: Sequence[str]) -> None:
    """So that nobody commits to these sessions' samples, scores, deletes or changes them meanwhile."""
    of_sessions = sa.select(SessionRow.job_id).where(SessionRow.id.in_(session_ids)).distinct()
    jobs.lock_all(session, session.scalars(of_sessions).all())


def _lock(session: Session, session_ids: Sequence[str]) -> Sequence[str]:
    """Lock those of these sessions that exist until the transaction ends; returns their ids."""
    statement = sa.select(SessionRow.id).where(SessionRow.id.in_(session_ids)).order_by(SessionRow.id)
    return session.scalars(statement.with_for_update(key_share=True)).all()


def _remove(session: Session, session_ids: Sequence[str], *where: sa.ColumnElement[bool]) -> list[Removed]:
    _hold_jobs(session, session_ids)
    returned = session.execute(
        sa.delete(SessionRow)
        .where(SessionRow.id.in_(session_ids), *where)
        .returning(SessionRow.id, SessionRow.sample_id, SessionRow.job_id, SessionRow.bytes)
        .execution_options(synchronize_session=False)
    )
    removed = [Removed(*row) for row in returned]
    session.execute(
        sa.update(SampleRow)
        .where(
            SampleRow.id.in_([one.sample_id for one in removed]),
            SampleRow.session_id.in_([one.id for one in removed]),
        )
        .values(session_id=None)
        .execution_options(synchronize_session=False)
    )
    return removed


def _delete_files(store: ArtifactStore, removed: Sequence[Removed]) -> None:
    for one in removed:
        store.delete_prefix(session_prefix(one.id))


def _batches(found: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(found), BATCH):
        yield found[start : start + BATCH]
