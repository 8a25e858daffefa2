"""Compare the store with the index page by page: all checksums, or those of a random share.

A page takes some seconds and returns where the next one continues, so a check of days can be stopped and
resumed. Nothing is changed: an operator decides about damage.
"""

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from itertools import islice
from typing import Literal

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.errors import InvalidRequest, NotFound, StoreDamaged
from actograph.contract.operations import StoreProblem, StoreVerification
from storage.artifacts.checked_files import digest_of
from storage.artifacts.store import ArtifactStore, StoredPrefix
from storage.index.database import Database
from storage.sessions.manifest import MANIFEST_NAME
from storage.sessions.reader import SessionReader
from storage.sessions.writer import session_prefix
from storage.tables.models import FileRow, SessionRow
from storage.upkeep.store_gc import OLD_SECONDS, find_unknown

SESSIONS, FILES, STORED, STORED_FILES = "sessions", "files", "stored", "stored-files"
_PARENTS = {STORED: SESSIONS, STORED_FILES: FILES}
PHASES = (SESSIONS, FILES, STORED, STORED_FILES)
#: sessions or files that are read at once
THREADS = 4
_CHUNK = 16
_IDS = 1000
#: bytes read, and the problem if any
Checked = tuple[int, StoreProblem | None]


def verify(
    database: Database,
    store: ArtifactStore,
    *,
    after: str | None = None,
    sample: float = 1.0,
    seed: int = 0,
    seconds: float = 10.0,
    older_than_seconds: float = OLD_SECONDS,
) -> StoreVerification:
    """Verify one page.

    Args:
        after: `next` of the page before, with the same `sample` and `seed`.
        sample: share of the sessions and files to read, drawn by `seed`. Orphans are searched everywhere.
        seconds: about how long the call may take; one session is read to its end.
        older_than_seconds: newer files are not orphans yet.

    Raises:
        InvalidRequest: `after` is not the `next` of a page.
        ServiceUnavailable: the store cannot be reached.
    """
    phase, _, last_id = (after or SESSIONS).partition(":")
    if phase not in PHASES:
        raise InvalidRequest(f"after: {after!r} is not the next of a page", param="after")
    deadline = time.monotonic() + seconds
    problems: list[StoreProblem] = []
    checked = size = 0
    reached: str | None = None
    if phase in (SESSIONS, FILES):
        chosen = (i for i in _ids(database, phase, last_id) if in_sample(i, sample, seed))
        check = _check_session if phase == SESSIONS else _check_file
        with ThreadPoolExecutor(THREADS, thread_name_prefix="verify") as pool:
            while chunk := list(islice(chosen, _CHUNK)):
                for count, problem in pool.map(lambda one: check(database, store, one), chunk):
                    checked, size = checked + 1, size + count
                    problems += [problem] if problem is not None else []
                if time.monotonic() >= deadline:
                    reached = chunk[-1]
                    break
    else:
        unknown, reached = find_unknown(
            database,
            store,
            _PARENTS[phase],
            after=last_id,
            older_than_seconds=older_than_seconds,
            deadline=deadline,
        )
        problems += map(_orphan, unknown)
    follows = f"{phase}:{reached}" if reached else next(iter(PHASES[PHASES.index(phase) + 1 :]), None)
    with database.read() as session:
        total = round(sample * (_count(session, SessionRow.id) + _count(session, FileRow.id)))
    return StoreVerification(checked=checked, bytes=size, total=total, problems=problems, next=follows)


def in_sample(identifier: str, sample: float, seed: int) -> bool:
    """Whether `seed` draws this id into the share `sample`."""
    if sample >= 1:
        return True
    draw = int.from_bytes(sha256(f"{seed}:{identifier}".encode()).digest()[:8], "big")
    return draw < sample * 2**64


def _ids(database: Database, phase: str, after: str) -> Iterator[str]:
    """Ids of the index in ascending order; each batch in a transaction of its own."""
    column = SessionRow.id if phase == SESSIONS else FileRow.id
    while True:
        with database.read() as session:
            statement = sa.select(column).where(column > after).order_by(column).limit(_IDS)
            batch = session.scalars(statement).all()
        yield from batch
        if len(batch) < _IDS:
            return
        after = batch[-1]


def _check_session(
    database: Database, store: ArtifactStore, session_id: str
) -> tuple[int, StoreProblem | None]:
    with database.read() as session:
        row = session.get(SessionRow, session_id)
    if row is None:
        return 0, None
    recorded = {name: (file["bytes"], file["sha256"]) for name, file in row.files.items()}
    size = sum(file["bytes"] for file in row.files.values())
    try:
        _compare(SessionReader(store, session_id), store, recorded)
    except (NotFound, StoreDamaged, OSError) as error:
        with database.read() as session:
            if session.get(SessionRow, session_id) is None:
                return 0, None  # deleted while it was read
        kind: Literal["missing", "damaged"] = "damaged"
        if isinstance(error, NotFound) and not store.exists(session_prefix(session_id)):
            kind = "missing"
        return size, StoreProblem(id=session_id, problem=kind, detail=str(error))
    return size, None


def _compare(reader: SessionReader, store: ArtifactStore, recorded: Mapping[str, tuple[int, str]]) -> None:
    """Raises NotFound or StoreDamaged."""
    key = f"{session_prefix(reader.session_id)}/{MANIFEST_NAME}"
    found = {file.name: (file.bytes, file.sha256) for file in reader.manifest.files}
    found[MANIFEST_NAME] = digest_of(store, key)
    differing = sorted(
        name for name in recorded.keys() | found.keys() if recorded.get(name) != found.get(name)
    )
    if differing:
        raise StoreDamaged(f"{', '.join(differing)}: different from the index")
    reader.verify()


def _check_file(database: Database, store: ArtifactStore, file_id: str) -> Checked:
    with database.read() as session:
        row = session.get(FileRow, file_id)
    if row is None:
        return 0, None
    try:
        if digest_of(store, f"{FILES}/{file_id}") == (row.bytes, row.sha256):
            return row.bytes, None
        problem: Literal["missing", "damaged"] = "damaged"
        detail = "different from the index"
    except NotFound as error:
        problem, detail = "missing", error.message
    except OSError as error:
        problem, detail = "damaged", str(error)
    with database.read() as session:
        if session.get(FileRow, file_id) is None:
            return 0, None
    return row.bytes, StoreProblem(id=file_id, problem=problem, detail=detail)


def _orphan(prefix: StoredPrefix) -> StoreProblem:
    detail = f"{prefix.bytes:,} bytes that are not in the index"
    return StoreProblem(id=prefix.id, problem="orphaned", detail=detail)


def _count(session: Session, column: sa.orm.InstrumentedAttribute[str]) -> int:
    return session.execute(sa.select(sa.func.count(column))).scalar_one()
