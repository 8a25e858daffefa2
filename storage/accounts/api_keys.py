"""Every query about API keys. Of a key only its sha256 is kept, and how it begins."""

import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Unpack

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.errors import Conflict
from actograph.contract.service.key_roles import Role
from actograph.contract.service.keys import KEY_PREFIX, ApiKey, KeyUpdate, NewKey
from storage.index import pages, row_locks
from storage.index.clock import moment_of
from storage.index.database import now
from storage.index.ids import new_key_id
from storage.index.pages import PageOptions
from storage.tables.models import ApiKeyRow

SHOWN_CHARACTERS = len(KEY_PREFIX) + 6
RANDOM_BYTES = 32
#: `last_used_at` is written at most so often
USED_SECONDS = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownKey:
    """Rights of a request with a key."""

    id: str
    role: Role
    owner: str
    expires_at: float | None
    requests_per_minute: int | None


@dataclass(frozen=True, kw_only=True, slots=True)
class KnownKeys:
    """All keys that are good, by their sha256."""

    by_digest: dict[str, KnownKey]
    #: whether there was ever a key, revoked ones included
    any: bool


def digest_of(key: str) -> str:
    """The sha256 that a key is looked up by, in hex."""
    return sha256(key.encode(errors="surrogateescape")).hexdigest()


def owner_of_digest(digest: str) -> str:
    """Default owner of a key, from the beginning of its sha256."""
    return f"key:{digest[:8]}"


def create(session: Session, new: NewKey, *, needs_admin: bool = True) -> tuple[ApiKeyRow, str]:
    """Make a key; returns its row and the key itself, which is kept nowhere.

    Args:
        needs_admin: whether the first key must be an admin's for good, since nobody else could make the
            next one.

    Raises:
        Conflict: the first key is no such one.
    """
    lasts = new.role is Role.ADMIN and new.expires_after is None
    if needs_admin and not lasts and not has_admin(session, lasting=True):
        raise Conflict(
            "the first key must have the role admin and no expires_after: only an admin can make the next one"
        )
    key = f"{KEY_PREFIX}{secrets.token_hex(RANDOM_BYTES)}"
    owner = new.owner or owner_of_digest(digest_of(key))
    while new.owner is None and _is_owner(session, owner):  # 32 bits do meet, and must not join strangers
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
        requests_per_minute=new.requests_per_minute,
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
    """Raises NotFound; Conflict where the key is revoked."""
    row = _locked(session, key_id)
    if row.revoked_at is not None:
        raise Conflict(f"key {key_id} is revoked")
    for name, value in change.changes.items():
        setattr(row, name, value)
    session.flush()
    return row


def revoke(session: Session, key_id: str, *, needs_admin: bool = True) -> ApiKeyRow:
    """End a key for good; its row stays, so that it is known whose it was. Twice changes nothing.

    Args:
        needs_admin: whether the last admin's key must stay.

    Raises:
        NotFound: no such key.
        Conflict: nobody could make keys any more.
    """
    if needs_admin:
        # two admins that revoke each other's key at once would both see the other one's
        admins = sa.select(ApiKeyRow.id).where(ApiKeyRow.role == Role.ADMIN).order_by(ApiKeyRow.id)
        session.execute(admins.with_for_update(key_share=True))
    row = _locked(session, key_id)
    if row.revoked_at is None:
        if needs_admin and row.role == Role.ADMIN:
            _require_other_admin(session, row)
        row.revoked_at = now(session)
        session.flush()
    return row


def known(session: Session) -> KnownKeys:
    """Every key that is good now, in one query."""
    rows = session.execute(
        sa.select(
            ApiKeyRow.sha256,
            ApiKeyRow.id,
            ApiKeyRow.role,
            ApiKeyRow.owner,
            ApiKeyRow.expires_at,
            ApiKeyRow.revoked_at,
            ApiKeyRow.requests_per_minute,
        )
    ).all()
    good = {
        row.sha256: KnownKey(
            id=row.id,
            role=Role(row.role),
            owner=row.owner,
            expires_at=row.expires_at,
            requests_per_minute=row.requests_per_minute,
        )
        for row in rows
        if row.revoked_at is None
    }
    return KnownKeys(by_digest=good, any=bool(rows))


def exist(session: Session) -> bool:
    """Whether there was ever a key."""
    return session.execute(sa.select(ApiKeyRow.id).limit(1)).first() is not None


def touch(session: Session, key_ids: Collection[str]) -> None:
    """Note that these keys were used, where that was not noted lately."""
    moment = now(session)
    lately = sa.and_(ApiKeyRow.last_used_at.is_not(None), ApiKeyRow.last_used_at > moment - USED_SECONDS)
    # what somebody else writes at the moment need not be written again
    due = sa.select(ApiKeyRow.id).where(ApiKeyRow.id.in_(key_ids), ~lately).with_for_update(skip_locked=True)
    session.execute(
        sa.update(ApiKeyRow).where(ApiKeyRow.id.in_(session.scalars(due).all())).values(last_used_at=moment)
    )


def quotas(session: Session) -> dict[str, int]:
    """Owner -> bytes that their keys say they may store: the most that one of the good keys says."""
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
        requests_per_minute=row.requests_per_minute,
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
    """Whether a good key of an admin is there, beside one; `lasting`: which does not end by itself."""
    statement = sa.select(ApiKeyRow.id).where(
        ApiKeyRow.role == Role.ADMIN, ApiKeyRow.id != but, *_good(now(session))
    )
    if lasting:
        statement = statement.where(ApiKeyRow.expires_at.is_(None))
    return session.execute(statement.limit(1)).first() is not None


def _require_other_admin(session: Session, row: ApiKeyRow) -> None:
    """Raises Conflict where without this key nobody could make keys, now or once the others have expired."""
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
