"""Record damage found by readers: in a counter, and in the log of the session's job."""

import logging

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.errors import StoreDamaged
from storage.index import counters, events
from storage.index.counters import Counter
from storage.index.database import Database
from storage.jobs import jobs
from storage.tables.models import EventRow, SessionRow

log = logging.getLogger(__name__)

EVENT = "session.damaged"
COUNTER = "damaged_reads"


def record(database: Database, error: StoreDamaged) -> None:
    """Count a damaged read. The first one of each session is also logged in its job.

    A failure to record is only logged, because the reader's error matters more.
    """
    try:
        with database.write() as session:
            counters.add(session, {Counter(COUNTER): 1})
            if error.artifact is not None:
                _append_once(session, error)
    except (sa.exc.SQLAlchemyError, OSError) as failure:
        log.warning("the damage of %s could not be recorded: %s", error.artifact, failure)


def _append_once(session: Session, error: StoreDamaged) -> None:
    row = session.get(SessionRow, error.artifact)
    if row is None or not jobs.lock_all(session, [row.job_id]):
        return
    known = sa.select(EventRow.id).where(
        EventRow.job_id == row.job_id,
        EventRow.event == EVENT,
        EventRow.data["session_id"].as_string() == row.id,
    )
    if session.execute(known.limit(1)).first() is None:
        data = {"session_id": row.id, "file": error.file, "message": error.message}
        events.append(session, row.job_id, EVENT, data)
