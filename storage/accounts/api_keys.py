"""Queries about API keys. Only a key's sha256 and its first characters are stored."""

import logging
import secrets
import time
from collections.abc import Sequence
from hashlib import sha256
from typing import Unpack

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from actograph.contract.errors import Conflict
from actograph.contract.operations import KEY_PREFIX, ApiKey, KeyUpdate, NewKey
from actograph.contract.roles import Role
from storage.index import pages, row_locks
from storage.index.clock import moment_of
from storage.index.database import Database, now
from storage.index.ids import new_key_id
from storage.index.pages import PageOptions
from storage.tables.models import ApiKeyRow

log = logging.getLogger(__name__)

SHOWN_CHARACTERS = len(KEY_PREFIX) + 6
RANDOM_BYTES = 32
#: shortest time between two writes of `last_used_at`
USED_SECONDS = 60.0


def digest_of(key: str) -> str:
    """The sha256 of a key in hex."""
    return sha256(key.encode(errors="surrogateescape")).hexdigest()


def owner_of_digest(digest: str) -> str:
    """The default owner of a key, named after the first digits of its sha256."""
    return f"key:{digest[:8]}"


def create(session: Session, new: NewKey, *, needs_admin: bool = True) -> tuple[ApiKeyRow, str]:
    """Create a key. Returns its row and the key itself, which is not stored.

    Args:
        needs_admin: whether the first key must be an admin's that never expires. Nobody else could create
            the next one.

    Raises:
        Conflict: there is no such key yet, and this is not one.
    """
    lasts = new.role is Role.ADMIN and new.expires_after is None
    if needs_admin and not lasts and not has_admin(session, lasting=True):
        raise Conflict(
            "the first key must have the role admin and no expires_after: only an admin can make the next one"
        )
    key = f"{KEY_PREFIX}{secrets.token_hex(RANDOM_BYTES)}"
    owner = new.owner or owner_of_digest(digest_of(key))
    while new.owner is None and _is_owner(session, owner):  # 32 bits may collide
        key = f"{KEY_PREFIX}{secrets.token_hex(RANDOM_BYTES)}"
        owner = owner_of_digest(digest_of(key))
    moment = now(session)
    row = ApiKeyRow(
        id=new_key_id(),
        name=new.name,
        role=new.role,
        owner=owner,
        sha256=digest_of(key),
        prefix=key[:SHOWN_CHARACTERS],
        created_at=moment,
        last_used_at=None,
        expires_at=None if new.expires_after is None else moment + new.expires_after.seconds,
        revoked_at=None,
        quota_bytes=new.quota_bytes,
    )
    session.add(row)
    session.flush()
    return row, key


def get(session: Session, key_id: str) -> ApiKeyRow:
    """Raises NotFound."""
    return row_locks.one([session.get(ApiKeyRow, key_id)], f"key {key_id}")


def find(session: Session, **page: Unpack[PageOptions]) -> tuple[Sequence[ApiKeyRow], bool]:
    """One page of keys, revoked ones included, newest first by default."""
    return pages.fetch(session, sa.select(ApiKeyRow), ApiKeyRow.created_at, ApiKeyRow.id, **page)


def update(session: Session, key_id: str, change: KeyUpdate) -> ApiKeyRow:
    """Change a key. Raises NotFound, or Conflict if it is revoked."""
    row = _locked(session, key_id)
    if row.revoked_at is not None:
        raise Conflict(f"key {key_id} is revoked")
    for name, value in change.model_dump(exclude_unset=True).items():
        setattr(row, name, value)
    session.flush()
    return row


def revoke(session: Session, key_id: str, *, needs_admin: bool = True) -> ApiKeyRow:
    """Revoke a key for ever. Its row stays as a record of its owner. A second call changes nothing.

    Args:
        needs_admin: whether the last key of an admin must stay.

    Raises:
        NotFound: no such key.
        Conflict: nobody could create keys any more.
    """
    if needs_admin:
        # or two admins could revoke each other's key at once
        admins = sa.select(ApiKeyRow.id).where(ApiKeyRow.role == Role.ADMIN).order_by(ApiKeyRow.id)
        session.execute(admins.with_for_update(key_share=True))
    row = _locked(session, key_id)
    if row.revoked_at is None:
        if needs_admin and row.role == Role.ADMIN:
            _require_other_admin(session, row)
        row.revoked_at = now(session)
        session.flush()
    return row


def valid(session: Session, digest: str) -> ApiKeyRow | None:
    """Find the key with this sha256; None if it is unknown, revoked or expired."""
    found = sa.select(ApiKeyRow).where(ApiKeyRow.sha256 == digest, *_good(moment_of(session)))
    return session.scalars(found).first()


def exist(session: Session) -> bool:
    """Whether a key was ever created."""
    return session.execute(sa.select(ApiKeyRow.id).limit(1)).first() is not None


def touch(database: Database, row: ApiKeyRow) -> None:
    """Write the time of use of a key, at most once per `USED_SECONDS`. Errors of the database are logged."""
    if row.last_used_at is not None and row.last_used_at > time.time() - USED_SECONDS:
        return
    try:
        with database.write() as session:
            # of several requests at once, the first one writes
            unchanged = ApiKeyRow.last_used_at.is_not_distinct_from(row.last_used_at)
            used = sa.update(ApiKeyRow).where(ApiKeyRow.id == row.id, unchanged)
            session.execute(used.values(last_used_at=now(session)))
    except SQLAlchemyError as error:
        log.warning("the last use of key %s was not stored: %s", row.id, type(error).__name__)


def quotas(session: Session) -> dict[str, int]:
    """Owner -> largest `quota_bytes` of their valid keys."""
    statement = (
        sa.select(ApiKeyRow.owner, sa.func.max(ApiKeyRow.quota_bytes))
        .where(ApiKeyRow.quota_bytes.is_not(None), *_good(moment_of(session)))
        .group_by(ApiKeyRow.owner)
    )
    return {owner: limit for owner, limit in session.execute(statement) if limit is not None}


def resource(row: ApiKeyRow) -> ApiKey:
    return ApiKey(
        id=row.id,
        name=row.name,
        role=Role(row.role),
        owner=row.owner,
        prefix=row.prefix,
        created_at=int(row.created_at),
        last_used_at=_seconds(row.last_used_at),
        expires_at=_seconds(row.expires_at),
        revoked_at=_seconds(row.revoked_at),
        quota_bytes=row.quota_bytes,
    )


def _locked(session: Session, key_id: str) -> ApiKeyRow:
    """Raises NotFound."""
    return row_locks.one(row_locks.lock(session, ApiKeyRow, [key_id]), f"key {key_id}")


def _good(moment: float | sa.ColumnElement[float]) -> tuple[sa.ColumnElement[bool], ...]:
    return (
        ApiKeyRow.revoked_at.is_(None),
        sa.or_(ApiKeyRow.expires_at.is_(None), ApiKeyRow.expires_at > moment),
    )


def has_admin(session: Session, *, but: str = "", lasting: bool = False) -> bool:
    """Whether an admin has a valid key other than `but`; with `lasting`, one that never expires."""
    statement = sa.select(ApiKeyRow.id).where(
        ApiKeyRow.role == Role.ADMIN, ApiKeyRow.id != but, *_good(now(session))
    )
    if lasting:
        statement = statement.where(ApiKeyRow.expires_at.is_(None))
    return session.execute(statement.limit(1)).first() is not None


def _require_other_admin(session: Session, row: ApiKeyRow) -> None:
    """Raises Conflict if nobody else could create keys, now or after the other keys expire."""
    if has_admin(session, but=row.id, lasting=True):
        return
    if not has_admin(session, but=row.id):
        raise Conflict(f"{row.id} is the last admin's key; create another one first")
    if row.expires_at is None:
        raise Conflict(
            f"{row.id} is the last admin's key that does not expire; create another one first, without "
            "expires_after"
        )


def _is_owner(session: Session, owner: str) -> bool:
    statement = sa.select(ApiKeyRow.id).where(ApiKeyRow.owner == owner).limit(1)
    return session.execute(statement).first() is not None


def _seconds(value: float | None) -> int | None:
    return int(value) if value is not None else None
