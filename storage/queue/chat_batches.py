"""Batches of chats: samples of several jobs that run together.

A chat is a job with one or a few samples. In batches of one job, the requests of many clients would run one
after the other.
"""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.chat_job import CHAT, batch_key
from actograph.contract.models import PinnedModel
from storage.jobs import jobs
from storage.queue import claim as claims
from storage.queue.leases import SUSPECT_AFTER, LeasedSample
from storage.queue.waiting import can_start
from storage.tables.models import JobRow

#: waiting chats that are read for one batch
MOST_JOBS = 1000


def claim(
    session: Session,
    model: str,
    key: Mapping[str, Any],
    *,
    held: Collection[str] = (),
    worker_id: str,
    count: int,
) -> list[LeasedSample]:
    """Lease up to `count` samples of chats with this model and key, oldest first, and start their jobs.

    Args:
        held: owners whose quota is used up; their jobs do not start.
    """
    waiting = session.execute(_waiting(session, model, held).limit(MOST_JOBS)).all()
    chosen: list[str] = []
    room = count
    for row in waiting:
        if room <= 0:
            break
        if _key_of_row(row) == key:
            chosen.append(row.id)
            room -= row.total or 1
    leases: list[LeasedSample] = []
    for job_id in [row.id for row in jobs.lock_all(session, chosen)]:
        left = count - len(leases)
        if left <= 0:
            break
        claimed = claims.of_job(session, job_id, worker_id=worker_id, count=left, is_alone=not leases)
        if claimed:
            jobs.start(session, job_id)
            leases += claimed
        if any(job_id == one.job_id and one.losses >= SUSPECT_AFTER for one in claimed):
            break
    return leases


class WaitingChat(NamedTuple):
    """A chat that can start, and the key that it shares with the chats of its batch."""

    job_id: str
    key: Mapping[str, Any]


def oldest(session: Session, model: str, *, held: Collection[str] = ()) -> WaitingChat | None:
    """The longest waiting chat of a model, if any."""
    row = session.execute(_waiting(session, model, held).limit(1)).first()
    return None if row is None else WaitingChat(row.id, _key_of_row(row))


def key_of(spec: dict[str, Any], pinned: PinnedModel | None) -> dict[str, Any]:
    """Fields that all chats of a batch share: of the spec, and the pinned model."""
    identity_sha256 = None if pinned is None else pinned.identity.sha256
    return _key(spec, identity_sha256, {} if pinned is None else pinned.savepoints)


def _key(spec: dict[str, Any], identity_sha256: str | None, savepoints: Mapping[str, str]) -> dict[str, Any]:
    return batch_key(spec) | {"identity_sha256": identity_sha256, "savepoints": savepoints}


def _key_of_row(row: Any) -> dict[str, Any]:
    return _key(row.spec, row.identity_sha256, (row.pinned or {}).get("savepoints") or {})


def _waiting(session: Session, model: str, held: Collection[str]) -> sa.Select[Any]:
    """Chats that can start, oldest first."""
    return (
        sa.select(JobRow.id, JobRow.spec, JobRow.total, JobRow.pinned, JobRow.identity_sha256)
        .where(*can_start(session, held), JobRow.kind == CHAT, JobRow.model == model)
        .order_by(JobRow.created_at, JobRow.id)
    )
