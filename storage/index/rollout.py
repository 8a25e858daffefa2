"""Migrations under running workers: a migration is announced, and workers of other versions end before it.

The announcement is a row of `state`, which every version can read, whatever the schema is.
"""

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.operations import WorkerStatus
from storage.index.database import now
from storage.index.upsert import Upsert
from storage.tables.models import StateRow, WorkerRow

_NAME = "schema"
_write = Upsert(StateRow, "value", "at")
#: a worker without a heartbeat for so long is not waited for
SILENT_SECONDS = 30.0
_ALIVE = (WorkerStatus.STARTING, WorkerStatus.READY, WorkerStatus.BUSY)


def announce(session: Session, revision: str, *, is_done: bool) -> None:
    """Tell all processes that the index is to have this schema, or has it."""
    value = {"revision": revision, "done": is_done}
    _write(session, [{"name": _NAME, "value": value, "at": now(session)}])


def announced(session: Session) -> tuple[str, bool] | None:
    """The announced schema, and whether the migration is done; None if nothing was ever announced."""
    value = session.scalar(sa.select(StateRow.value).where(StateRow.name == _NAME))
    return None if not value else (str(value["revision"]), bool(value["done"]))


def living_workers(session: Session) -> int:
    """Number of workers that still run."""
    is_alive = WorkerRow.status.in_(_ALIVE), WorkerRow.heartbeat_at > now(session) - SILENT_SECONDS
    return session.scalar(sa.select(sa.func.count()).select_from(WorkerRow).where(*is_alive)) or 0


def waiting_reason(session: Session) -> str | None:
    """Why no worker starts samples: a migration that waits for workers; None if there is none."""
    found = announced(session)
    if found is None or found[1]:
        return None
    count = living_workers(session)
    return f"the index is to be migrated to schema {found[0]}: {count} workers end what they run"
