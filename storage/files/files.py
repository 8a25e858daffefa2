"""Queries about uploaded files, and their expiry. Their bytes are in the store under `files/<id>`."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Unpack

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract import operations
from actograph.contract.errors import NotFound, ServiceUnavailable
from actograph.contract.openai_answers import BatchStatus
from storage.artifacts.checked_files import CheckedFile
from storage.artifacts.store import ArtifactStore
from storage.index import pages, row_locks, visible
from storage.index.database import Database, changed, now
from storage.index.ids import new_file_id
from storage.index.pages import PageOptions
from storage.jobs import jobs
from storage.tables.models import IS_OPEN_BATCH, BatchRow, FileRow, JobRow, SaeRow


def announce(
    session: Session,
    *,
    filename: str,
    purpose: str,
    size: int = 0,
    owner: str = "",
    expires_after: float | None = None,
) -> str:
    """Insert the row of a file before its bytes are stored. Returns its id.

    Nobody sees the file before `publish`, and the reaper removes it if that does not happen within a day.

    Args:
        size: bytes that count in the owner's quota meanwhile.
        expires_after: seconds; None keeps the file.
    """
    moment = now(session)
    row = FileRow(
        id=new_file_id(),
        filename=filename,
        purpose=purpose,
        bytes=size,
        sha256="",
        created_at=moment,
        owner=owner,
        expires_at=None if expires_after is None else moment + expires_after,
        **visible.unpublished(moment),
    )
    session.add(row)
    session.flush()
    session.expunge(row)
    return row.id


def publish(session: Session, file_id: str, *, size: int, sha256: str) -> FileRow:
    """Show a stored file. Raises ServiceUnavailable if the upload took so long that it was given up."""
    with visible.hidden_too(session):
        shown = sa.update(FileRow).where(
            FileRow.id == file_id, visible.may_be_published(FileRow, now(session))
        )
        stored = session.execute(shown.values(bytes=size, sha256=sha256, **visible.PUBLISHED))
    if not changed(stored):
        raise ServiceUnavailable(f"storing file {file_id} took more than a day; send it again")
    return get(session, file_id)


def abandon(session: Session, file_id: str) -> None:
    """Give up a file that was announced and not published."""
    with visible.hidden_too(session):
        unpublished = sa.update(FileRow).where(
            FileRow.id == file_id, visible.may_be_published(FileRow, now(session))
        )
        session.execute(unpublished.values(visible.deleted(now(session))))


def get(session: Session, file_id: str) -> FileRow:
    """Raises NotFound."""
    return row_locks.one([session.get(FileRow, file_id)], f"file {file_id}")


def stored(row: FileRow, store: ArtifactStore) -> CheckedFile:
    """The bytes of a file."""
    return CheckedFile(store, f"files/{row.id}", size=row.bytes, sha256=row.sha256)


def keep(session: Session, file_id: str) -> FileRow:
    """The file, protected from deletion until the transaction ends. Raises NotFound."""
    return row_locks.one(row_locks.keep(session, FileRow, [file_id]), f"file {file_id}")


def lock(session: Session, file_id: str) -> FileRow:
    """The file, locked for deletion: no new row can refer to it. Raises NotFound."""
    return row_locks.one(row_locks.lock(session, FileRow, [file_id], to_delete=True), f"file {file_id}")


def find(
    session: Session,
    *,
    purpose: str | None = None,
    **page: Unpack[PageOptions],
) -> tuple[Sequence[FileRow], bool]:
    """One page of files, newest first by default."""
    statement = sa.select(FileRow)
    if purpose is not None:
        statement = statement.where(FileRow.purpose == purpose)
    return pages.fetch(session, statement, FileRow.created_at, FileRow.id, **page)


def delete(session: Session, file_id: str) -> None:
    """Hide the file now; its bytes are removed in the background. Raises NotFound."""
    row = lock(session, file_id)
    for name, value in visible.deleted(now(session)).items():
        setattr(row, name, value)
    session.flush()
    session.expunge(row)


def expire(database: Database) -> int:
    """Delete expired files that no job or batch reads. Returns their number."""
    with database.read() as session:
        due = sa.select(FileRow.id).where(FileRow.expires_at <= now(session)).order_by(FileRow.expires_at)
        expired = session.scalars(due).all()
    count = 0
    for file_id in expired:
        with suppress(NotFound), database.write() as session:  # it may be deleted meanwhile
            lock(session, file_id)
            if reader_of(session, file_id) is None:
                delete(session, file_id)
                count += 1
    return count


@visible.of_everyone
def reader_of(session: Session, file_id: str) -> str | None:
    """The active job or the SAE that reads this file, or the batch that validates it. The file is locked."""
    sae_id = session.scalars(sa.select(SaeRow.id).where(SaeRow.file_id == file_id).limit(1)).first()
    if sae_id is not None:
        return f"SAE {sae_id}"
    active = sa.select(JobRow.id, JobRow.spec).where(JobRow.status.in_(jobs.ACTIVE))
    for job_id, spec in session.execute(active):
        datasets = (spec.get("dataset"), spec.get("fewshot_dataset"))
        if any(one and one.get("file_id") == file_id for one in datasets):
            return f"job {job_id}"
    validating = (IS_OPEN_BATCH, BatchRow.status == BatchStatus.VALIDATING)
    reading = sa.select(BatchRow.id).where(BatchRow.input_file_id == file_id, *validating)
    batch_id = session.scalars(reading.limit(1)).first()
    return None if batch_id is None else f"batch {batch_id}"


def resource(row: FileRow) -> operations.File:
    return operations.File(
        id=row.id,
        bytes=row.bytes,
        created_at=int(row.created_at),
        filename=row.filename,
        purpose=row.purpose,
        expires_at=None if row.expires_at is None else int(row.expires_at),
    )
