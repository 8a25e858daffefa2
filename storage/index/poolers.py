"""Whether a pooler such as pgbouncer is between a client and Postgres, which keeps no session for it."""

from typing import Any

import psycopg


def is_direct(connection: psycopg.Connection[tuple[Any, ...]]) -> bool:
    """True if the process that answers is the one that was named when the connection was made.

    A pooler makes up that number.
    """
    with connection.cursor() as cursor:
        answering = cursor.execute("SELECT pg_backend_pid()").fetchone()
    return answering is not None and answering[0] == connection.info.backend_pid
