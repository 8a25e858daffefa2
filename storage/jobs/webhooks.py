"""Pending webhooks: written in the transaction that ends a job, claimed by the process that delivers them.

So the death of a process loses no webhook. A delivery may arrive twice, with the same id.
"""

import json
from collections.abc import Sequence
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
from storage.jobs import view
from storage.tables.models import BatchRow, JobRow, WebhookRow

#: longest pause between two attempts
LONGEST_PAUSE_SECONDS = 6 * 3600.0
PAUSE_GROWTH = 4


def plan(session: Session, row: JobRow) -> None:
    """Write the webhook of an ended job, if it has one. The job of a batch has none, see `plan_batch`."""
    given = row.spec.get("webhook")
    if given is not None and row.kind != BATCH:
        data = view.of_row(row).model_dump(mode="json", exclude={"spec"})
        _note(
            session,
            WebhookSpec.model_validate(given),
            f"job.{row.status}",
            data,
            job_id=row.id,
            moment=row.finished_at,
        )


def plan_batch(session: Session, row: BatchRow, batch: Batch) -> None:
    """Write the webhook of an ended batch, if it has one."""
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
    """True if a delivery is due."""
    due = sa.select(WebhookRow.id).where(WebhookRow.next_attempt_at <= now(session)).limit(1)
    return session.execute(due).first() is not None


def claim(session: Session, *, limit: int, retry_seconds: float) -> Sequence[WebhookRow]:
    """Claim due deliveries, the longest waiting first.

    Each row counts the attempt that begins now. If it fails, or the process dies, the next one follows at
    `next_attempt_at`.
    """
    moment = now(session)
    due = session.scalars(
        sa.select(WebhookRow)
        .where(WebhookRow.next_attempt_at <= moment)
        .order_by(WebhookRow.next_attempt_at, WebhookRow.id)
        .limit(limit)
        .with_for_update(skip_locked=True)
    ).all()
    for row in due:
        row.attempts += 1
        pause = min(retry_seconds * PAUSE_GROWTH ** (row.attempts - 1), LONGEST_PAUSE_SECONDS)
        row.next_attempt_at = moment + pause
    return due


def delivered(session: Session, delivery: WebhookRow, status_code: int) -> None:
    """Record a successful delivery."""
    _keep_job(session, delivery)
    if _forget(session, delivery):
        _log(session, delivery, "webhook.delivered", status_code=status_code)


def failed(session: Session, delivery: WebhookRow, reason: str, *, gives_up: bool) -> None:
    """Record a failed attempt, and the next one unless `gives_up`."""
    _keep_job(session, delivery)
    if gives_up:
        if _forget(session, delivery):
            _log(session, delivery, "webhook.failed", reason=reason)
    elif session.get(WebhookRow, delivery.id) is not None:
        again = delivery.next_attempt_at
        _log(session, delivery, "webhook.retrying", reason=reason, next_attempt_at=again)


def _keep_job(session: Session, delivery: WebhookRow) -> None:
    """Keep the job before its delivery: a deletion locks them in this order."""
    if delivery.job_id is not None:
        row_locks.keep(session, JobRow, [delivery.job_id])


def _forget(session: Session, delivery: WebhookRow) -> bool:
    """Delete the row. Returns False if it was deleted with its job, whose log is gone."""
    return changed(session.execute(sa.delete(WebhookRow).where(WebhookRow.id == delivery.id))) > 0


def _log(session: Session, delivery: WebhookRow, event: str, **more: object) -> None:
    if delivery.job_id is not None:
        entry = {"webhook_id": delivery.id, "type": delivery.event, "attempt": delivery.attempts, **more}
        events.append(session, delivery.job_id, event, entry)
