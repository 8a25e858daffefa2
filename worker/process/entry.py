"""A worker's first steps: wait for the index, check schema and store, register."""

import os
import socket
from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.settings import Settings
from storage import migrate
from storage.index import deployment
from storage.index.database import Database
from storage.queue import workers
from worker.signals.stop_signal import StopSignal


def enter(
    settings: Settings,
    database: Database,
    stop: StopSignal,
    worker_id: str,
    *,
    model: str,
    served: Sequence[str],
) -> None:
    """Register a worker, and end those of this machine whose process is gone.

    Raises:
        ServiceUnavailable: the database has the schema of another version, or the store is another one.
    """
    # wait for a database that is being restarted
    database.insist(lambda session: session.execute(sa.select(1)), give_up=stop.is_set)
    migrate.require_current(database)
    deployment.check_store(database, settings.effective_artifact_url)
    hostname = socket.gethostname()

    def register(session: Session) -> None:
        workers.bury(session, hostname, _is_alive)
        workers.register(session, worker_id, hostname=hostname, pid=os.getpid(), model=model, served=served)

    database.insist(register, give_up=stop.is_set)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
