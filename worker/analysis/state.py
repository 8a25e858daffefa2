"""Files of analysis jobs in the store: the state to resume from, and results."""

import io
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from actograph.contract.errors import StoreDamaged
from storage.artifacts.checked_files import UPLOAD_CHUNK_BYTES, ChunkDigests, ChunkHasher
from storage.artifacts.store import ArtifactStore
from storage.files import files
from storage.index import deletions, ids
from storage.index.database import Database
from storage.jobs import jobs

#: arrays by name, without objects
State = dict[str, NDArray[Any]]
_NAME = "state.npz"


@dataclass(frozen=True, kw_only=True)
class StoredFile:
    """A file in the store that has no row yet."""

    id: str
    name: str
    bytes: int
    sha256: str
    chunks: ChunkDigests | None


def put(
    database: Database, store: ArtifactStore, contents: Mapping[str, bytes], owner: str | None
) -> list[StoredFile]:
    """Store files. Without `insert` they are removed later.

    Raises:
        ServiceUnavailable: the store is away.
    """
    stored = []
    for name, data in contents.items():
        file_id, hasher = ids.new_file_id(), ChunkHasher(UPLOAD_CHUNK_BYTES)
        with database.write() as session:
            deletions.begin_storing(session, file_id, owner, len(data))
        try:
            _, sha256 = store.put_stream(f"files/{file_id}", hasher.passing([data]))
        except BaseException:
            give_up(database, [file_id])
            raise
        stored.append(StoredFile(id=file_id, name=name, bytes=len(data), sha256=sha256, chunks=hasher.chunks))
    return stored


def give_up(database: Database, file_ids: list[str]) -> None:
    """Remove stored files that get no row."""
    for file_id in file_ids:
        with suppress(SQLAlchemyError), database.write() as session:
            deletions.give_up_storing(session, file_id)


def insert(
    session: Session, stored: list[StoredFile], *, job_id: str, owner: str | None, purpose: str
) -> None:
    """Make stored files those of a job."""
    for one in stored:
        deletions.end_storing(session, one.id)
        files.insert(
            session,
            file_id=one.id,
            filename=one.name,
            purpose=purpose,
            size=one.bytes,
            sha256=one.sha256,
            owner=owner,
            chunks=one.chunks,
            job_id=job_id,
        )


class StoredState:
    """The state of one analysis job, replaced as a whole."""

    def __init__(self, database: Database, store: ArtifactStore, job_id: str, owner: str | None) -> None:
        self._database = database
        self._store = store
        self._job_id = job_id
        self._owner = owner

    def read(self) -> State | None:
        """The last stored state. None if there is none, or if it is damaged."""
        with self._database.read() as session:
            rows = files.of_job(session, self._job_id, files.ANALYSIS_STATE)
            found = [(row, files.chunks_of(session, row.id)) for row in rows]
        if not found:
            return None
        row, chunks = found[-1]
        try:
            data = b"".join(files.stored(row, self._store, chunks).stream())
        except StoreDamaged:
            return None
        with np.load(io.BytesIO(data), allow_pickle=False) as loaded:
            return {name: loaded[name] for name in loaded.files}

    def write(self, state: State) -> None:
        """Store a state in place of the former one. Does nothing if the job was deleted."""
        data = io.BytesIO()
        np.savez(data, allow_pickle=False, **state)
        stored = put(self._database, self._store, {_NAME: data.getvalue()}, self._owner)
        with self._database.write() as session:
            if not jobs.keep(session, [self._job_id]):
                for one in stored:
                    deletions.give_up_storing(session, one.id)
                return
            self.remove(session)
            insert(session, stored, job_id=self._job_id, owner=self._owner, purpose=files.ANALYSIS_STATE)

    def remove(self, session: Session) -> None:
        """Delete the state."""
        for row in files.of_job(session, self._job_id, files.ANALYSIS_STATE):
            files.delete(session, row.id)
        session.flush()
