"""The clock of the database. Leases are compared with it, so workers with wrong clocks agree."""

import time

import sqlalchemy as sa
from sqlalchemy.orm import Session

#: days since noon in Greenwich on 24 November 4714 BC, in milliseconds' steps
_SQLITE = "(julianday('now') - 2440587.5) * 86400.0"
_SERVER = "extract(epoch FROM clock_timestamp())"
_NOW_SQLITE = sa.text(f"SELECT {_SQLITE}")
_NOW_SERVER = sa.text(f"SELECT {_SERVER}")
_ASKED = "actograph_now"


def now(session: Session) -> float:
    """The database's time in Unix seconds.

    A transaction reads it once, and adds the time of a monotonic clock from then on.
    """
    asked: tuple[float, float] | None = session.info.get(_ASKED)
    if asked is None:
        asked = session.info[_ASKED] = (_ask_now(session), time.monotonic())
    return asked[0] + time.monotonic() - asked[1]


def _ask_now(session: Session) -> float:
    connection = session.connection()
    is_sqlite = connection.dialect.name == "sqlite"
    return float(connection.execute(_NOW_SQLITE if is_sqlite else _NOW_SERVER).scalar_one())


def moment_of(session: Session) -> sa.ColumnElement[float]:
    """The database's time as an expression, for use within a statement."""
    is_sqlite = session.get_bind().dialect.name == "sqlite"
    return sa.literal_column(_SQLITE if is_sqlite else _SERVER, sa.Double)
