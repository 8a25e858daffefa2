"""Chats that are run as one batch: a unit of samples that belong to several jobs.

A chat is a job with one sample or a few, so that units of one job alone would run the requests of many
clients one after the other.
"""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.chat.chat_job import KIND, batch_key
from actograph.contract.models.model_identity import PinnedModel
from storage import samples
from storage.index.database import now
from storage.jobs import jobs
from storage.queue.job_queue import has_work, not_held
from storage.samples import LeasedSample
from storage.tables.models import JobRow

#: chats that are looked at for one batch
MOST_JOBS = 1000


def claim(
    session: Session,
    model: str,
    key: Mapping[str, Any],
    *,
    held: Collection[str] = (),
    worker_id: str,
    count: int,
    lease_seconds: float,
) -> list[LeasedSample]:
    """Lease up to `count` samples of the chats of a model that have this key, the oldest first.

    Their jobs count as begun. Jobs are locked in the order of their ids, as everywhere.

    Args:
        held: owners whose jobs cannot be begun now, see `storage.accounts.quotas`.
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
        claimed = samples.claim(session, job_id, worker_id=worker_id, count=left, lease_seconds=lease_seconds)
        if claimed:
            jobs.start(session, job_id)
            leases += claimed
    return leases


class WaitingChat(NamedTuple):
    """A chat that can be begun, and what those that share a batch with it have in common."""

    job_id: str
    key: Mapping[str, Any]


def oldest(session: Session, model: str, *, held: Collection[str] = ()) -> WaitingChat | None:
    """The chat of a model that waits longest; None where none waits."""
    row = session.execute(_waiting(session, model, held).limit(1)).first()
    return None if row is None else WaitingChat(row.id, _key_of_row(row))


def key_of(spec: dict[str, Any], pinned: PinnedModel | None) -> dict[str, Any]:
    """The fields in which all chats of a batch agree: those of the spec, and the model they are pinned to."""
    identity_sha256 = None if pinned is None else pinned.identity.sha256
    return _key(spec, identity_sha256, {} if pinned is None else pinned.savepoints)


def _key(spec: dict[str, Any], identity_sha256: str | None, savepoints: Mapping[str, str]) -> dict[str, Any]:
    return batch_key(spec) | {"identity_sha256": identity_sha256, "savepoints": savepoints}


def _key_of_row(row: Any) -> dict[str, Any]:
    return _key(row.spec, row.identity_sha256, (row.pinned or {}).get("savepoints") or {})


def _waiting(session: Session, model: str, held: Collection[str]) -> sa.Select[Any]:
    """Chats that can be begun, the oldest first."""
    return (
        sa.select(JobRow.id, JobRow.spec, JobRow.total, JobRow.pinned, JobRow.identity_sha256)
        .where(
            JobRow.kind == KIND,
            JobRow.model == model,
            JobRow.status.in_(jobs.ACTIVE),
            has_work(now(session)),
            not_held(held),
        )
        .order_by(JobRow.created_at, JobRow.id)
    )
