"""The clock of the database. Leases are compared with it, so workers with wrong clocks agree."""

import time

import sqlalchemy as sa
from sqlalchemy.orm import Session

#: days since noon in Greenwich on 24 November 4714 BC, in milliseconds' steps
_SQLITE = "(julianday('now') - 2440587.5) * 86400.0"
SERVER = "extract(epoch FROM clock_timestamp())"
_READ = "actograph_now"
#: in `Connection.info`: the time at which its transaction began, if the transaction began with a question
BEGUN = "actograph_begun"


def now(session: Session) -> float:
    """The database's time in Unix seconds.

    A transaction reads it once, and adds the time of a monotonic clock from then on.
    """
    read: tuple[float, float] | None = session.info.get(_READ)
    if read is None:
        read = session.connection().info.get(BEGUN)
        if read is None:
            moment = session.execute(sa.select(moment_of(session))).scalar_one()
            read = (float(moment), time.monotonic())
        session.info[_READ] = read
    return read[0] + time.monotonic() - read[1]


def moment_of(session: Session) -> sa.ColumnElement[float]:
    """The database's time as an expression, for use within a statement."""
    return moment(is_sqlite=session.get_bind().dialect.name == "sqlite")


def moment(*, is_sqlite: bool) -> sa.ColumnElement[float]:
    """See `moment_of`; for statements that are built once."""
    return sa.literal_column(_SQLITE if is_sqlite else SERVER, sa.Double)
