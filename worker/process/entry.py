"""A worker's first steps: wait for the index, check schema and store, register."""

import os
import socket
import time
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from actograph import process_identity
from actograph.contract.errors import ServiceUnavailable
from actograph.settings import Settings
from storage import migrate
from storage.index import deployment
from storage.index.database import Database
from storage.queue import workers
from worker.signals.stop_signal import StopSignal

#: time for a database that is being restarted to answer
PATIENCE_SECONDS = 60.0


def enter(
    settings: Settings,
    database: Database,
    stop: StopSignal,
    worker_id: str,
    *,
    model: str,
    served: Sequence[str],
) -> None:
    """Register a worker, and end those of its PID namespace whose process has ended.

    Raises:
        ServiceUnavailable: the database does not answer for `PATIENCE_SECONDS`, or has the schema of another
            version, or the store is another one.
    """
    gives_up_at = time.monotonic() + PATIENCE_SECONDS
    try:  # a database may be being restarted
        database.insist(
            lambda session: session.execute(sa.select(1)),
            give_up=lambda: stop.is_set() or time.monotonic() > gives_up_at,
        )
    except DBAPIError as error:
        raise ServiceUnavailable(
            f"the index does not answer: {error.orig}; check ACTOGRAPH_DATABASE_URL"
        ) from error
    migrate.require_current(database)
    deployment.check_store(database, settings.effective_artifact_url)
    hostname, pid, namespace = socket.gethostname(), os.getpid(), process_identity.pid_namespace()

    def register(session: Session) -> None:
        workers.declare_lost(session, namespace, process_identity.has_ended)
        workers.register(
            session,
            worker_id,
            hostname=hostname,
            pid=pid,
            pid_namespace=namespace,
            process_started=process_identity.start_ticks(pid),
            model=model,
            served=served,
        )

    database.insist(register, give_up=stop.is_set)
