"""Pending deletions of jobs, sessions and uploads.

A deletion is written in the transaction that hides its object, so a crash leaves either a readable object or
a pending deletion. `storage.upkeep.deletion_drain` executes them in the background:

* Deleting the rows of a large job, or of many sessions, in one transaction would block every other writer.
  Such objects are `listed`: hidden from every reader at once, and their rows are deleted slice by slice.
* A session or file without a row waits for the removal of its stored files. Until then its bytes count in its
  owner's quota.
* The entry of a deleted capture job is kept for a month. With it the sweep recognizes files that a worker
  stored after the job's end.
* A file has an entry before its first byte is stored. The commit of its row deletes the entry.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.errors import ServiceUnavailable
from storage.index.clock import now
from storage.index.database import changed
from storage.index.ownership import owner_of
from storage.index.upsert import insert_or_skip
from storage.tables.models import DeletionRow, SessionRow

#: an upload without a row after so long has failed
STORING_SECONDS = 6 * 3600.0
#: how long entries of deleted jobs are kept
REMEMBER_SECONDS = 30 * 24 * 3600.0

_TABLE = cast(sa.Table, DeletionRow.__table__)
_COLUMNS = ("id", "owner", "bytes", "listed", "created_at", "attempts", "next_attempt_at")


def add(session: Session, doomed: Sequence[Mapping[str, Any]], *, after_seconds: float = 0.0) -> None:
    """Add entries of objects whose rows this transaction deletes: `id`, `owner`, `bytes`, `names`."""
    if not doomed:
        return
    session.flush()
    moment = now(session)
    # listed sessions have an entry already
    session.execute(sa.delete(_TABLE).where(_TABLE.c.id.in_([one["id"] for one in doomed])))
    entry = {"listed": False, "attempts": 0, "created_at": moment, "next_attempt_at": moment + after_seconds}
    session.connection().execute(sa.insert(_TABLE), [{"names": None} | dict(one) | entry for one in doomed])


def list_job(session: Session, job_id: str, owner: str | None) -> None:
    """Add the entry of a job whose rows are deleted slice by slice."""
    entry = {"id": job_id, "owner": owner, "bytes": 0, "listed": True, "attempts": 0}
    moment = now(session)
    session.connection().execute(sa.insert(_TABLE), entry | {"created_at": moment, "next_attempt_at": None})


def list_sessions(session: Session, chosen: sa.Select[tuple[str]]) -> list[int]:
    """Hide the sessions whose ids a statement selects, and add their entries. Returns their sizes."""
    moment = now(session)
    # Not the whole condition of VISIBLE: a lookup in the growing table may take quadratic time on Postgres.
    # Sessions that are listed already are skipped as conflicts.
    listed_jobs = session.scalars(
        sa.select(DeletionRow.id).where(DeletionRow.listed == sa.true(), DeletionRow.id.startswith("job_"))
    ).all()
    source = chosen.where(SessionRow.job_id.not_in(listed_jobs)).with_only_columns(
        SessionRow.id,
        SessionRow.owner,
        SessionRow.bytes,
        sa.true(),
        sa.literal(moment),
        sa.literal(0),
        sa.null(),
        maintain_column_froms=True,
    )
    if (owner := owner_of(session)) is not None:  # ownership does not narrow an INSERT
        source = source.where(SessionRow.owner == owner)
    # the lock keeps other transactions from pinning one of them
    source = source.order_by(SessionRow.id).with_for_update(of=SessionRow, key_share=True)
    insert = insert_or_skip(session, DeletionRow).from_select(_COLUMNS, source, include_defaults=False)
    sizes = list(session.connection().execute(insert.returning(_TABLE.c.bytes)).scalars())
    if session.get_bind().dialect.name == "postgresql":
        # the statistics of a nearly always empty table would make readers scan it for each session
        session.connection().execute(sa.text("ANALYZE deletions"))
    return sizes


def visible(session: Session) -> tuple[sa.ColumnElement[bool], ...]:
    """Condition without listed sessions and sessions of listed jobs; empty if nothing is listed."""
    listed = sa.select(DeletionRow.id).where(DeletionRow.listed == sa.true()).limit(1)
    return VISIBLE if session.execute(listed).first() is not None else ()


def _not_listed(key: Any) -> sa.ColumnElement[bool]:
    return ~sa.exists().where(DeletionRow.id == key, DeletionRow.listed == sa.true()).correlate_except(
        DeletionRow
    )


VISIBLE = (_not_listed(SessionRow.id), _not_listed(SessionRow.job_id))


def begin_storing(session: Session, file_id: str, owner: str | None, size: int) -> None:
    """Schedule the removal of a new file, in case its row is never written."""
    add(session, [{"id": file_id, "owner": owner, "bytes": size}], after_seconds=STORING_SECONDS)


def end_storing(session: Session, file_id: str) -> None:
    """Cancel the scheduled removal, in the transaction that writes the file's row.

    Raises:
        ServiceUnavailable: the upload took so long that the file was removed.
    """
    if not changed(session.execute(sa.delete(DeletionRow).where(DeletionRow.id == file_id))):
        raise ServiceUnavailable(
            f"storing file {file_id} took more than {STORING_SECONDS:.0f} s; send it again"
        )


def give_up_storing(session: Session, file_id: str) -> None:
    """Schedule the removal of a failed upload now."""
    chosen = sa.update(DeletionRow).where(DeletionRow.id == file_id)
    session.execute(chosen.values(next_attempt_at=now(session)))


@dataclass(slots=True)
class Pending:
    """Deleted objects of one owner that are still stored."""

    count: int = 0
    bytes: int = 0
    #: sessions among them that still have a row
    listed: int = 0
    listed_bytes: int = 0


def usage(session: Session) -> dict[str | None, Pending]:
    """Owner -> deleted objects that are still stored."""
    found: dict[str | None, Pending] = {}
    waiting = sa.select(DeletionRow.owner, sa.func.count(), sa.func.sum(DeletionRow.bytes)).where(
        DeletionRow.listed == sa.false(), DeletionRow.next_attempt_at.is_not(None)
    )
    for owner, count, size in session.execute(waiting.group_by(DeletionRow.owner)):
        found[owner] = Pending(count, int(size))
    if visible(session):
        hidden = sa.select(SessionRow.owner, sa.func.count(), sa.func.sum(SessionRow.bytes)).where(
            ~sa.and_(*VISIBLE)
        )
        for owner, count, size in session.execute(hidden.group_by(SessionRow.owner)):
            pending = found.setdefault(owner, Pending())
            pending.count, pending.bytes = pending.count + count, pending.bytes + int(size)
            pending.listed, pending.listed_bytes = count, int(size)
    return found


def pending_ids(session: Session, ids: Sequence[str]) -> set[str]:
    """The ids that have an entry."""
    return set(session.scalars(sa.select(DeletionRow.id).where(DeletionRow.id.in_(ids))))


def is_any_due(session: Session) -> bool:
    """True if a deletion is due."""
    due = sa.or_(DeletionRow.listed == sa.true(), DeletionRow.next_attempt_at <= now(session))
    return session.execute(sa.select(DeletionRow.id).where(due).limit(1)).first() is not None


def forget(session: Session) -> None:
    """Delete the entries of jobs that were deleted long ago."""
    old = (DeletionRow.next_attempt_at.is_(None), DeletionRow.listed == sa.false())
    session.execute(
        sa.delete(DeletionRow).where(*old, DeletionRow.created_at < now(session) - REMEMBER_SECONDS)
    )
