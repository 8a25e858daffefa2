"""Tables of the service itself: keys, counters, pauses, and the state of the schema."""

import sqlalchemy as sa
from sqlalchemy.orm import Mapped, mapped_column

from storage.tables.base import ID_LENGTH, Base, id_key


class QueuePauseRow(Base):
    """An operator's pause of the queue. Its end deletes the row."""

    __tablename__ = "queue_pauses"

    kind: Mapped[str] = mapped_column(sa.String(16), primary_key=True)
    reason: Mapped[str | None] = mapped_column(sa.String(500))
    paused_by: Mapped[str] = mapped_column(sa.String(64))
    paused_at: Mapped[float]


class CounterRow(Base):
    """A count that only grows, see `storage.index.counters`."""

    __tablename__ = "counters"

    #: id of the counting worker; "" for all other processes
    source: Mapped[str] = mapped_column(sa.String(ID_LENGTH), primary_key=True)
    name: Mapped[str] = mapped_column(sa.String(64), primary_key=True)
    #: kind of the job; "" without a job
    kind: Mapped[str] = mapped_column(sa.String(32), primary_key=True)
    status: Mapped[str] = mapped_column(sa.String(16), primary_key=True)
    value: Mapped[float]


class ApiKeyRow(Base):
    """An API key, stored as its sha256.

    A key has 256 random bits, so nobody can guess it from the digest. A slow hash would only delay requests.
    """

    __tablename__ = "api_keys"

    id: Mapped[str] = id_key()
    name: Mapped[str] = mapped_column(sa.String(64))
    role: Mapped[str] = mapped_column(sa.String(16))
    #: owner of the visible and new rows; several keys may share one
    owner: Mapped[str] = mapped_column(sa.String(ID_LENGTH), index=True)
    sha256: Mapped[str] = mapped_column(sa.String(64), unique=True)
    #: first characters of the key, for display
    prefix: Mapped[str] = mapped_column(sa.String(16))
    created_at: Mapped[float]
    #: written every few minutes
    last_used_at: Mapped[float | None]
    expires_at: Mapped[float | None]
    revoked_at: Mapped[float | None]
    #: bytes that its owner may store; null for the setting
    quota_bytes: Mapped[int | None] = mapped_column(sa.BigInteger)


class DeletionRow(Base):
    """A deleted job, session or file whose rows or stored files still exist."""

    __tablename__ = "deletions"
    __table_args__ = (
        sa.Index("ix_deletions_listed_created_at", "listed", "created_at"),
        sa.Index("ix_deletions_next_attempt_at", "next_attempt_at"),
    )

    #: id of the job, session or file
    id: Mapped[str] = id_key()
    owner: Mapped[str | None] = mapped_column(sa.String(ID_LENGTH))
    #: size of its stored files
    bytes: Mapped[int] = mapped_column(sa.BigInteger, default=0)
    #: names of a session's stored files; null: every file under its prefix
    names: Mapped[list[str] | None]
    #: True while its rows are in their own tables, hidden and counted there
    listed: Mapped[bool]
    created_at: Mapped[float]
    #: failed attempts at removing the files
    attempts: Mapped[int] = mapped_column(default=0, server_default=sa.text("0"))
    #: time of the next attempt at removing the files; null if it has none
    next_attempt_at: Mapped[float | None]
