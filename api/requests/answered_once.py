"""Requests with an Idempotency-Key: a repeated request is executed once and gets the same answer.

https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/: the same key with the
same request gives the stored answer, while it is being answered 409, with another request 422.
"""

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Annotated

from fastapi import Header
from sqlalchemy.orm import Session

from actograph.contract.errors import ActographError, InvalidRequest
from api.dependencies import Services
from storage.submission import idempotency
from storage.submission.idempotency import StoredAnswer

IdempotencyKey = Annotated[str | None, Header(min_length=1, max_length=255)]


@dataclass(frozen=True, kw_only=True)
class Keep:
    """Stores the answer of a request if it has an Idempotency-Key."""

    owner: str
    key: str | None

    def __call__(self, session: Session, answer: StoredAnswer) -> None:
        """Store the answer in the transaction that executes the request."""
        if self.key is not None:
            idempotency.finish(session, self.owner, self.key, answer.status_code, answer.response)

    def renew(self, session: Session) -> None:
        """Show that a request with several transactions is still running."""
        if self.key is not None:
            idempotency.renew(session, self.owner, self.key)


def answered_once(
    services: Services, owner: str, key: str | None, request: bytes, act: Callable[[Keep], StoredAnswer]
) -> StoredAnswer:
    """Execute a request by `act`, unless its key was answered before.

    Args:
        owner: owner of the key; keys of other owners differ.
        request: method, path and body, which identify the request.
        act: executes the request; it calls `Keep` in its transaction.

    Raises:
        IdempotencyInFlight, IdempotencyMismatch, InvalidRequest: by the key.
    """
    keep = Keep(owner=owner, key=key)
    if key is None:
        return act(keep)
    # the key is compared as text in the index
    if "\0" in key or not key.isprintable():
        raise InvalidRequest("an Idempotency-Key is printable text", param="Idempotency-Key")
    with services.database.write() as session:
        stored = idempotency.begin(session, owner, key, sha256(request).hexdigest())
    if stored is not None:
        return stored

    try:
        return act(keep)
    except ActographError:
        with services.database.write() as session:
            idempotency.abandon(session, owner, key)
        raise
