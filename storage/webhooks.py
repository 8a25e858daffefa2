"""Webhooks on their way: planned in the transaction that ends a job, taken up by whoever delivers them.

So no end goes untold where a process dies, and a delivery may come twice, with the same id.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.webhooks import WebhookPayload, WebhookSpec
from storage import events, job_shape
from storage.database import changed, now
from storage.ids import new_webhook_id
from storage.models import JobRow, WebhookRow

#: pauses grow up to this
LONGEST_PAUSE_SECONDS = 6 * 3600.0
PAUSE_GROWTH = 4


@dataclass(frozen=True, kw_only=True)
class Delivery:
    """One attempt that the caller is to make."""

    id: str
    job_id: str
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
    """A job has ended: note whom to tell, if anybody, and what the job is now."""
    given = row.spec.get("webhook")
    if given is None:
        return
    spec, event = WebhookSpec.model_validate(given), f"job.{row.status}"
    if not spec.wants(event):
        return
    moment = row.finished_at if row.finished_at is not None else now(session)
    webhook_id = new_webhook_id()
    payload = WebhookPayload(
        id=webhook_id,
        type=event,
        timestamp=datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds"),
        created_at=int(moment),
        data=job_shape.of_row(row).model_dump(mode="json", exclude={"spec"}),
    )
    session.add(
        WebhookRow(
            id=webhook_id,
            job_id=row.id,
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
    if _forget(session, delivery):
        events.append(
            session, delivery.job_id, "webhook.delivered", _entry(delivery, status_code=status_code)
        )


def failed(session: Session, delivery: Delivery, reason: str, *, gives_up: bool) -> None:
    """The attempt failed; unless it is given up, it is made again."""
    if gives_up:
        if _forget(session, delivery):
            events.append(session, delivery.job_id, "webhook.failed", _entry(delivery, reason=reason))
    elif session.get(WebhookRow, delivery.id) is not None:
        again = _entry(delivery, reason=reason, next_attempt_at=delivery.next_attempt_at)
        events.append(session, delivery.job_id, "webhook.retrying", again)


def _forget(session: Session, delivery: Delivery) -> bool:
    """False where the job was deleted meanwhile: it has no log any more."""
    return changed(session.execute(sa.delete(WebhookRow).where(WebhookRow.id == delivery.id))) > 0


def _entry(delivery: Delivery, **more: object) -> dict[str, object]:
    return {"webhook_id": delivery.id, "type": delivery.event, "attempt": delivery.attempt, **more}
