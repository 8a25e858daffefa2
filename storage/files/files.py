"""Every query about uploaded files. Their bytes are in the artifact store under `files/<id>`."""

from collections.abc import Sequence
from typing import Unpack

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract import resources
from storage.artifacts.checked_files import CheckedFile, ChunkDigests
from storage.artifacts.store import ArtifactStore
from storage.index import deletions, pages, row_locks
from storage.index.database import now
from storage.index.pages import PageOptions
from storage.tables.models import FileRow


def insert(
    session: Session,
    *,
    file_id: str,
    filename: str,
    purpose: str,
    size: int,
    sha256: str,
    owner: str | None = None,
    expires_after: float | None = None,
    chunks: ChunkDigests | None = None,
) -> FileRow:
    """Add a file that is in the store already; `expires_after` is in seconds from now, None keeps it.

    Args:
        chunks: digests of the file's chunks; None for a file of one chunk.
    """
    moment = now(session)
    row = FileRow(
        id=file_id,
        filename=filename,
        purpose=purpose,
        bytes=size,
        sha256=sha256,
        created_at=moment,
        owner=owner,
        expires_at=None if expires_after is None else moment + expires_after,
        chunks=None if chunks is None else chunks.model_dump(),
    )
    session.add(row)
    session.flush()
    return row


def get(session: Session, file_id: str) -> FileRow:
    """Raises NotFound."""
    return row_locks.one([session.get(FileRow, file_id)], f"file {file_id}")


def chunks_of(session: Session, file_id: str) -> ChunkDigests | None:
    """Digests of the file's chunks; None for a file of one chunk, or of an earlier version."""
    found = session.scalar(sa.select(FileRow.chunks).where(FileRow.id == file_id))
    return None if found is None else ChunkDigests.model_validate(found)


def stored(row: FileRow, store: ArtifactStore, chunks: ChunkDigests | None) -> CheckedFile:
    """The bytes of a file, verified as they are read."""
    return CheckedFile(store, f"files/{row.id}", size=row.bytes, sha256=row.sha256, chunks=chunks)


def keep(session: Session, file_id: str) -> FileRow:
    """The file, held off from deletion until the transaction ends. Raises NotFound."""
    return row_locks.one(row_locks.keep(session, FileRow, [file_id]), f"file {file_id}")


def lock(session: Session, file_id: str) -> FileRow:
    """The file, for its deletion: nobody begins to refer to it any more. Raises NotFound."""
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
    """Remove the row; the stored bytes follow in the background. Raises NotFound."""
    row = lock(session, file_id)
    session.delete(row)
    deletions.add(session, [{"id": row.id, "owner": row.owner, "bytes": row.bytes}])


def resource(row: FileRow) -> resources.File:
    return resources.File(
        id=row.id,
        bytes=row.bytes,
        created_at=int(row.created_at),
        filename=row.filename,
        purpose=row.purpose,
        expires_at=None if row.expires_at is None else int(row.expires_at),
    )
