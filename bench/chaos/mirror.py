"""Copies the sessions of a remote store to a folder: an audit reads every byte of them, some many times."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import sqlalchemy as sa

from actograph.contract.errors import NotFound, RangeNotSatisfiable
from storage.artifacts.local import LocalStore
from storage.artifacts.store import ArtifactStore
from storage.index.database import Database
from storage.sessions.writer import session_prefix
from storage.tables.models import SessionRow

THREADS = 8


def local_copy(database: Database, store: ArtifactStore, folder: Path) -> ArtifactStore:
    """The store itself where it is local, else a copy of all sessions that the index knows."""
    if isinstance(store, LocalStore):
        return store
    copy = LocalStore(folder)
    with database.read() as session:
        rows = session.execute(sa.select(SessionRow.id, SessionRow.files)).all()
    files = [(row.id, name, file["bytes"]) for row in rows for name, file in row.files.items()]

    def fetch(session_id: str, name: str, size: int) -> None:
        target = copy.root / session_prefix(session_id) / name
        target.parent.mkdir(exist_ok=True)
        try:
            target.write_bytes(store.read(f"{session_prefix(session_id)}/{name}", 0, size))
        except (NotFound, RangeNotSatisfiable):
            return  # the audit finds it missing

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(lambda file: fetch(*file), files))
    return copy
