"""The state of a running analysis: one file per sample, by which the next lease resumes.

Its row in the index is that of a file in the making (`storage.index.visible`), which each save keeps for
another day. So the reaper removes what is left of an analysis that never ends, and nothing lists it.
"""

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.errors import NotFound
from storage.artifacts.store import ArtifactStore
from storage.index import visible
from storage.index.database import Database, now
from storage.queue import leases
from storage.queue.leases import LeasedSample
from storage.tables.models import FileRow, SampleRow, Visibility


def load(store: ArtifactStore, sample_id: str) -> bytes | None:
    """The last saved state of a sample; None without one."""
    try:
        return b"".join(store.stream(f"files/{_file_id(sample_id)}"))
    except NotFound:
        return None


def save(database: Database, store: ArtifactStore, lease: LeasedSample, owner: str, data: bytes) -> bool:
    """Store the state of a sample. False if the lease is lost, or an older state is just being removed.

    Raises:
        ServiceUnavailable: the store cannot be written to.
    """
    with database.write() as session:
        is_ours = session.scalars(sa.select(SampleRow.id).where(*leases.ours(lease))).first()
        if is_ours is None or not _announce(session, lease.id, owner, len(data)):
            return False
    store.put_stream(f"files/{_file_id(lease.id)}", [data])
    return True


def drop(session: Session, sample_id: str) -> None:
    """Let the reaper remove the state."""
    with visible.hidden_too(session):
        waiting = sa.update(FileRow).where(
            FileRow.id == _file_id(sample_id), visible.may_be_published(FileRow, now(session))
        )
        session.execute(waiting.values(visible.deleted(now(session))))


def _announce(session: Session, sample_id: str, owner: str, size: int) -> bool:
    moment, file_id = now(session), _file_id(sample_id)
    with visible.hidden_too(session):
        row = session.get(FileRow, file_id)
        if row is None:
            row = FileRow(
                id=file_id, filename="state", purpose="analysis", sha256="", created_at=moment, owner=owner
            )
            session.add(row)
        elif row.visibility != Visibility.UNPUBLISHED or (row.removal_due_at or 0.0) <= moment:
            return False
        row.bytes = size
        for name, value in visible.unpublished(moment).items():
            setattr(row, name, value)
        session.flush()
    return True


def _file_id(sample_id: str) -> str:
    return f"file_{sample_id.removeprefix('smp_')}"
