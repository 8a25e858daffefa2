"""Files whose time is over: uploads with `expires_after`, output of batches with `output_expires_after`."""

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.errors import NotFound
from storage.files import files
from storage.index.database import Database, now
from storage.jobs import batches, jobs
from storage.tables.models import FileRow


def is_any_due(session: Session) -> bool:
    """Whether the time of a file is over."""
    due = sa.select(FileRow.id).where(FileRow.expires_at <= now(session)).limit(1)
    return session.execute(due).first() is not None


def expire(database: Database) -> int:
    """Delete the files whose time is over, but for those that a job or a batch still reads; how many went."""
    with database.read() as session:
        due = sa.select(FileRow.id).where(FileRow.expires_at <= now(session)).order_by(FileRow.expires_at)
        found = list(session.scalars(due))
    gone = 0
    for file_id in found:
        with database.write() as session:
            try:
                files.lock(session, file_id)
            except NotFound:
                continue  # deleted since
            if reader_of(session, file_id) is not None:
                continue
            files.delete(session, file_id)
        gone += 1
    return gone


def reader_of(session: Session, file_id: str) -> str | None:
    """The active job, or the batch that is being made, that reads this file, if any."""
    job = jobs.refers_to_file(session, file_id)
    if job is not None:
        return f"job {job}"
    batch = batches.reads_file(session, file_id)
    return None if batch is None else f"batch {batch}"
