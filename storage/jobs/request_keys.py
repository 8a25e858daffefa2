"""Requests with an Idempotency-Key: the job or batch of the first request answers every repeated one.

The key stands in the row itself, so it lives as long as the job or batch.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from actograph.contract.errors import IdempotencyInFlight, IdempotencyMismatch
from storage.index import visible
from storage.tables.models import BatchRow, JobRow

Row = TypeVar("Row", JobRow, BatchRow)


@dataclass(frozen=True, kw_only=True)
class RequestKey:
    """The key of a request, unique per owner, and the digest of the request."""

    key: str
    sha256: str


def made_with(session: Session, table: type[Row], owner: str, given: RequestKey) -> Row | None:
    """Find the row that the first request with this key made; None if this is the first one.

    Raises:
        IdempotencyInFlight: the samples of the job are still being stored.
        IdempotencyMismatch: the key was used for another request.
    """
    named = sa.select(table).where(table.owner == owner, table.idempotency_key == given.key)
    row = session.scalars(named).first()
    if row is None:
        with visible.hidden_too(session):
            row = session.scalars(named).first()
        if row is not None:  # a deleted job has no key
            raise IdempotencyInFlight(param="Idempotency-Key")
    elif row.idempotency_sha256 != given.sha256:
        raise IdempotencyMismatch(param="Idempotency-Key")
    return row


@contextmanager
def first_wins() -> Iterator[None]:
    """Refuse the second of two first requests at once. Raises IdempotencyInFlight."""
    try:
        yield
    except IntegrityError as error:
        if "idempotency_key" not in str(error.orig):
            raise
        raise IdempotencyInFlight(param="Idempotency-Key") from error
