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
