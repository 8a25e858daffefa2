"""Answers to requests that carried an Idempotency-Key (draft-ietf-httpapi-idempotency-key-header)."""

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from actograph.contract.errors import IdempotencyInFlight, IdempotencyMismatch
from storage.database import changed, now
from storage.models import IdempotencyRow

KEEP_SECONDS = 24 * 3600
#: a request that has not been answered for so long was lost with its process
IN_FLIGHT_SECONDS = 60


@dataclass(frozen=True)
class StoredAnswer:
    status_code: int
    response: dict[str, Any]


def begin(session: Session, owner: str, key: str, digest: str) -> StoredAnswer | None:
    """Reserve a key of an owner. Returns the stored answer where the same request was answered before.

    Raises:
        IdempotencyInFlight: the same request is being answered.
        IdempotencyMismatch: the key was used with another body.
    """
    moment = now(session)
    forget(session)
    row = session.get(IdempotencyRow, (owner, key), with_for_update=True, populate_existing=True)
    if row is None:
        session.add(IdempotencyRow(owner=owner, key=key, digest=digest, created_at=moment))
        try:
            session.flush()
        except IntegrityError as error:  # two first requests at once: the other one has it
            raise IdempotencyInFlight(param="Idempotency-Key") from error
        return None
    if row.digest != digest:
        raise IdempotencyMismatch(param="Idempotency-Key")
    if row.status_code is None or row.response is None:
        if row.created_at < moment - IN_FLIGHT_SECONDS:
            row.created_at = moment
            return None
        raise IdempotencyInFlight(param="Idempotency-Key")
    return StoredAnswer(row.status_code, row.response)


def forget(session: Session, *, dry_run: bool = False) -> int:
    """Remove answers that nobody may ask for any more; how many they were."""
    old = IdempotencyRow.created_at < now(session) - KEEP_SECONDS
    if dry_run:
        return session.execute(sa.select(sa.func.count()).where(old)).scalar_one()
    return changed(session.execute(sa.delete(IdempotencyRow).where(old)))


def finish(session: Session, owner: str, key: str, status_code: int, response: dict[str, Any]) -> None:
    """Store the answer, in the transaction that does what was asked for.

    Raises:
        IdempotencyInFlight: this request took so long that a repeated one took the key over; the
            caller's transaction must not be committed.
    """
    stored = session.execute(
        sa.update(IdempotencyRow)
        .where(*_in_flight(owner, key))
        .values(status_code=status_code, response=response)
    )
    if not changed(stored):
        raise IdempotencyInFlight(param="Idempotency-Key")


def abandon(session: Session, owner: str, key: str) -> None:
    """The request was refused; the key may be used again."""
    session.execute(sa.delete(IdempotencyRow).where(*_in_flight(owner, key)))


def _in_flight(owner: str, key: str) -> tuple[sa.ColumnElement[bool], ...]:
    return (
        IdempotencyRow.owner == owner,
        IdempotencyRow.key == key,
        IdempotencyRow.status_code.is_(None),
    )
