"""Answers to requests with an Idempotency-Key (draft-ietf-httpapi-idempotency-key-header)."""

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.errors import IdempotencyInFlight, IdempotencyMismatch
from storage.index.database import changed, now
from storage.index.upsert import insert_or_skip
from storage.tables.models import IdempotencyRow

KEEP_SECONDS = 24 * 3600
#: a request without an answer for so long was lost with its process
IN_FLIGHT_SECONDS = 60


@dataclass(frozen=True)
class StoredAnswer:
    status_code: int
    response: dict[str, Any]


def begin(session: Session, owner: str, key: str, digest: str) -> StoredAnswer | None:
    """Reserve a key of an owner. Returns the stored answer if the same request was answered before.

    Raises:
        IdempotencyInFlight: the same request is being answered.
        IdempotencyMismatch: the key was used with another body.
    """
    moment = now(session)
    new = insert_or_skip(session, IdempotencyRow).values(
        owner=owner, key=key, digest=digest, created_at=moment
    )
    # of two first requests at once, the second waits for the first and skips its row
    if session.connection().execute(new.returning(IdempotencyRow.key)).first() is not None:
        return None
    row = session.get(IdempotencyRow, (owner, key), with_for_update=True, populate_existing=True)
    if row is None:  # the other request was refused meanwhile
        raise IdempotencyInFlight(param="Idempotency-Key")
    if row.created_at < moment - KEEP_SECONDS:
        row.digest, row.created_at, row.status_code, row.response = digest, moment, None, None
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
    """Delete old answers. Returns their number, also with `dry_run`."""
    old = IdempotencyRow.created_at < now(session) - KEEP_SECONDS
    if dry_run:
        return session.execute(sa.select(sa.func.count()).where(old)).scalar_one()
    key = sa.tuple_(IdempotencyRow.owner, IdempotencyRow.key)
    # rows locked by another transaction are being deleted anyway
    forgotten = sa.select(IdempotencyRow.owner, IdempotencyRow.key).where(old)
    return changed(
        session.execute(
            sa.delete(IdempotencyRow)
            .where(key.in_(forgotten.with_for_update(skip_locked=True)))
            .execution_options(synchronize_session=False)
        )
    )


def finish(session: Session, owner: str, key: str, status_code: int, response: dict[str, Any]) -> None:
    """Store the answer, in the transaction of the request.

    Raises:
        IdempotencyInFlight: the request took so long that a repeated one took the key. Do not commit the
            caller's transaction.
    """
    stored = session.execute(
        sa.update(IdempotencyRow)
        .where(*_in_flight(owner, key))
        .values(status_code=status_code, response=response)
    )
    if not changed(stored):
        raise IdempotencyInFlight(param="Idempotency-Key")


def renew(session: Session, owner: str, key: str) -> None:
    """Keep the key of a request in progress, so that a repeated request does not take it."""
    session.execute(sa.update(IdempotencyRow).where(*_in_flight(owner, key)).values(created_at=now(session)))


def abandon(session: Session, owner: str, key: str) -> None:
    """Free the key of a refused request."""
    session.execute(sa.delete(IdempotencyRow).where(*_in_flight(owner, key)))


def _in_flight(owner: str, key: str) -> tuple[sa.ColumnElement[bool], ...]:
    return (
        IdempotencyRow.owner == owner,
        IdempotencyRow.key == key,
        IdempotencyRow.status_code.is_(None),
    )
