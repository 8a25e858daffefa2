"""Notices that jobs of a model have changed: new work, or samples that a worker holds no longer.

A transaction notes the models, and `Database.write` sends them: by NOTIFY on Postgres, which arrives after
the commit or never, and by `Database.announce`. A notice only says "read the index". Whoever misses one reads
it a little later anyway.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
import sqlalchemy as sa
from sqlalchemy.engine import URL
from sqlalchemy.orm import Session

from actograph.contract.errors import ServiceUnavailable
from storage.index import poolers

CHANNEL = "actograph_jobs"
#: the jobs of all models
ALL = ""
_NOTED = "actograph_notices"
_NOTIFY = sa.text(f"SELECT pg_notify('{CHANNEL}', :model)")
CONNECT_SECONDS = 10
#: of a connection whose server is silent: seconds to the first probe, between probes, number of probes
_KEEP_ALIVE: Any = {"keepalives": 1, "keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}

#: waits for up to so many seconds; returns the models of the notices that have come
Wait = Callable[[float], Sequence[str]]


class NoSession(ServiceUnavailable):
    """The URL leads through a pooler, which keeps no session for LISTEN."""


def note(session: Session, model: str) -> None:
    """Send a notice with this transaction."""
    session.info.setdefault(_NOTED, set()).add(model)


def write(session: Session) -> Sequence[str]:
    """Send the notices of a transaction that is about to commit. Returns their models."""
    noted = sorted(session.info.pop(_NOTED, ()))
    if noted and session.get_bind().dialect.name == "postgresql":
        for model in noted:
            session.connection().execute(_NOTIFY, {"model": model})
    return noted


@contextmanager
def listen(url: URL) -> Iterator[Wait]:
    """Listen for notices on a connection of its own.

    Raises:
        NoSession: the connection is a pooler's.
        psycopg.Error: the server does not answer; also raised by waiting.
    """
    address = url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(
        address, autocommit=True, prepare_threshold=None, connect_timeout=CONNECT_SECONDS, **_KEEP_ALIVE
    ) as connection:
        if not poolers.is_direct(connection):
            raise NoSession("the connection leads through a pooler, which keeps no session for LISTEN")
        connection.execute(f"LISTEN {CHANNEL}")

        def wait(seconds: float) -> Sequence[str]:
            return [one.payload for one in connection.notifies(timeout=seconds, stop_after=1)]

        yield wait
