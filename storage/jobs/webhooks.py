"""Webhooks on their way: planned in the transaction that ends a job, taken up by whoever delivers them.

So no end goes untold where a process dies, and a delivery may come twice, with the same id.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.batches import KIND as BATCH
from actograph.contract.batches import Batch
from actograph.contract.webhooks import WebhookPayload, WebhookSpec
from storage.index import events, row_locks
from storage.index.database import changed, now
from storage.index.ids import new_webhook_id
from storage.jobs import job_shape
from storage.tables.models import BatchRow, JobRow, WebhookRow

#: pauses grow up to this
LONGEST_PAUSE_SECONDS = 6 * 3600.0
PAUSE_GROWTH = 4


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """One attempt that the caller is to make."""

    id: str
    #: in whose log the attempt is told; None where there is no job
    job_id: str | None
    event: str
    #: None: the service's own
    url: str | None
    payload: bytes
    #: 1 is the first
    attempt: int
    #: Unix seconds of the database, as it is signed
    moment: float
    #: when the next attempt would be made
    next_attempt_at: float


def plan(session: Session, row: JobRow) -> None:
    """A job has ended: note whom to tell, if anybody, and what the job is now.

    A batch tells its end itself, once its files are there.
    """
    given = row.spec.get("webhook")
    if given is not None and row.kind != BATCH:
        data = job_shape.of_row(row).model_dump(mode="json", exclude={"spec"})
        _note(
            session,
            WebhookSpec.model_validate(given),
            f"job.{row.status}",
            data,
            job_id=row.id,
            moment=row.finished_at,
        )


def plan_batch(session: Session, row: BatchRow, batch: Batch) -> None:
    """The same of a batch that has ended."""
    given = row.request.get("webhook")
    if given is not None:
        spec, data = WebhookSpec.model_validate(given), batch.model_dump(mode="json")
        _note(
            session,
            spec,
            f"batch.{batch.status}",
            data,
            job_id=row.job_id,
            moment=row.moments.get(row.status),
        )


def _note(
    session: Session,
    spec: WebhookSpec,
    event: str,
    data: dict[str, Any],
    *,
    job_id: str | None,
    moment: float | None,
) -> None:
    if not spec.wants(event):
        return
    moment = now(session) if moment is None else moment
    webhook_id = new_webhook_id()
    payload = WebhookPayload(
        id=webhook_id,
        type=event,
        timestamp=datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds"),
        created_at=int(moment),
        data=data,
    )
    session.add(
        WebhookRow(
            id=webhook_id,
            job_id=job_id,
            event=event,
            url=spec.url,
            payload=json.dumps(payload.model_dump(mode="json"), separators=(",", ":")),
            attempts=0,
            next_attempt_at=moment,
        )
    )


def is_any_due(session: Session) -> bool:
    """Whether a delivery's time has come."""
    due = sa.select(WebhookRow.id).where(WebhookRow.next_attempt_at <= now(session)).limit(1)
    return session.execute(due).first() is not None


def claim(session: Session, *, limit: int, retry_seconds: float) -> Sequence[Delivery]:
    """Begin the attempts that are due, the longest waiting first; nobody else begins the same ones.

    Where the process dies meanwhile, the next attempt is made when it would be after a failure.
    """
    moment = now(session)
    found = session.scalars(
        sa.select(WebhookRow)
        .where(WebhookRow.next_attempt_at <= moment)
        .order_by(WebhookRow.next_attempt_at, WebhookRow.id)
        .limit(limit)
        .with_for_update(skip_locked=True)
    ).all()
    begun = []
    for row in found:
        row.attempts += 1
        pause = min(retry_seconds * PAUSE_GROWTH ** (row.attempts - 1), LONGEST_PAUSE_SECONDS)
        row.next_attempt_at = moment + pause
        begun.append(
            Delivery(
                id=row.id,
                job_id=row.job_id,
                event=row.event,
                url=row.url,
                payload=row.payload.encode(),
                attempt=row.attempts,
                moment=moment,
                next_attempt_at=row.next_attempt_at,
            )
        )
    return begun


def delivered(session: Session, delivery: Delivery, status_code: int) -> None:
    """The receiver has it."""
    _keep_job(session, delivery)
    if _forget(session, delivery):
        _tell(session, delivery, "webhook.delivered", status_code=status_code)


def failed(session: Session, delivery: Delivery, reason: str, *, gives_up: bool) -> None:
    """The attempt failed; unless it is given up, it is made again."""
    _keep_job(session, delivery)
    if gives_up:
        if _forget(session, delivery):
            _tell(session, delivery, "webhook.failed", reason=reason)
    elif session.get(WebhookRow, delivery.id) is not None:
        again = delivery.next_attempt_at
        _tell(session, delivery, "webhook.retrying", reason=reason, next_attempt_at=again)


def _keep_job(session: Session, delivery: Delivery) -> None:
    """A deletion of the job takes the job first and then the delivery, and so must who tells of it."""
    if delivery.job_id is not None:
        row_locks.keep(session, JobRow, [delivery.job_id])


def _forget(session: Session, delivery: Delivery) -> bool:
    """False where the job was deleted meanwhile: it has no log any more."""
    return changed(session.execute(sa.delete(WebhookRow).where(WebhookRow.id == delivery.id))) > 0


def _tell(session: Session, delivery: Delivery, event: str, **more: object) -> None:
    if delivery.job_id is not None:
        entry = {"webhook_id": delivery.id, "type": delivery.event, "attempt": delivery.attempt, **more}
        events.append(session, delivery.job_id, event, entry)
