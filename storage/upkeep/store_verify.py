"""Compare the store with the index page by page: all checksums, or those of a random share.

A page takes some seconds and returns where the next one continues, so a check of days can be stopped and
resumed. Nothing is changed: an operator decides about damage.
"""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from hashlib import sha256
from itertools import islice
from typing import Literal, cast

import sqlalchemy as sa

from actograph.contract.errors import InvalidRequest, NotFound, StoreDamaged
from actograph.contract.operations import StoreProblem, StoreVerification
from storage.artifacts.checked_files import digest_of
from storage.artifacts.store import ArtifactStore
from storage.index import visible
from storage.index.database import Database
from storage.sessions.manifest import MANIFEST_NAME
from storage.sessions.reader import SessionReader
from storage.tables.models import FileRow, SessionRow
from storage.upkeep.store_gc import OLD_SECONDS

SESSIONS, FILES, STORED, STORED_FILES = "sessions", "files", "stored", "stored-files"
_PARENTS = {STORED: SESSIONS, STORED_FILES: FILES}
PHASES = (SESSIONS, FILES, STORED, STORED_FILES)
#: sessions or files that are read at once
THREADS = 4
_CHUNK = 16
_IDS = 1000
Stored = SessionRow | FileRow


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
        row: type[Stored] = SessionRow if phase == SESSIONS else FileRow
        chosen = (one for one in _ids(database, row, last_id) if in_sample(one, sample, seed))
        with ThreadPoolExecutor(THREADS, thread_name_prefix="verify") as pool:
            while chunk := list(islice(chosen, _CHUNK)):
                for count, problem in pool.map(partial(_check, database, store, row), chunk):
                    checked, size = checked + 1, size + count
                    problems += [problem] if problem is not None else []
                if time.monotonic() >= deadline:
                    reached = chunk[-1]
                    break
    else:
        oldest = time.time() - older_than_seconds
        problems, reached = _orphans(
            database, store, _PARENTS[phase], last_id, oldest=oldest, deadline=deadline
        )
    follows = f"{phase}:{reached}" if reached else next(iter(PHASES[PHASES.index(phase) + 1 :]), None)
    with database.read() as session:
        counts = [session.scalar(sa.select(sa.func.count(row.id))) or 0 for row in (SessionRow, FileRow)]
    return StoreVerification(
        checked=checked, bytes=size, total=round(sample * sum(counts)), problems=problems, next=follows
    )


def in_sample(identifier: str, sample: float, seed: int) -> bool:
    """Whether `seed` draws this id into the share `sample`."""
    if sample >= 1:
        return True
    draw = int.from_bytes(sha256(f"{seed}:{identifier}".encode()).digest()[:8], "big")
    return draw < sample * 2**64


def _ids(database: Database, row: type[Stored], after: str) -> Iterator[str]:
    """Ids of the index in ascending order; each batch in a transaction of its own."""
    while True:
        with database.read() as session:
            statement = sa.select(row.id).where(row.id > after).order_by(row.id).limit(_IDS)
            batch = session.scalars(statement).all()
        yield from batch
        if len(batch) < _IDS:
            return
        after = batch[-1]


def _check(
    database: Database, store: ArtifactStore, row: type[Stored], one: str
) -> tuple[int, StoreProblem | None]:
    """Verify a session or file. Returns the bytes read, and the problem if any."""
    with database.read() as session:
        found = cast(Stored | None, session.get(row, one))
    if found is None:
        return 0, None
    try:
        if isinstance(found, SessionRow):
            _compare(SessionReader(store, one), store, found)
        elif digest_of(store, f"{FILES}/{one}") != (found.bytes, found.sha256):
            raise StoreDamaged("different from the index")
    except (NotFound, StoreDamaged, OSError) as error:
        with database.read() as session:
            if session.get(row, one) is None:
                return 0, None  # deleted while it was read
        parent = SESSIONS if row is SessionRow else FILES
        is_gone = isinstance(error, NotFound) and not store.exists(f"{parent}/{one}")
        problem: Literal["missing", "damaged"] = "missing" if is_gone else "damaged"
        return found.bytes, StoreProblem(id=one, problem=problem, detail=str(error))
    return found.bytes, None


def _compare(reader: SessionReader, store: ArtifactStore, row: SessionRow) -> None:
    """Raises NotFound or StoreDamaged."""
    recorded = {name: (file["bytes"], file["sha256"]) for name, file in row.files.items()}
    found = {file.name: (file.bytes, file.sha256) for file in reader.manifest.files}
    found[MANIFEST_NAME] = digest_of(store, f"{SESSIONS}/{row.id}/{MANIFEST_NAME}")
    differing = sorted(
        name for name in recorded.keys() | found.keys() if recorded.get(name) != found.get(name)
    )
    if differing:
        raise StoreDamaged(f"{', '.join(differing)}: different from the index")
    reader.verify()


def _orphans(
    database: Database, store: ArtifactStore, parent: str, after: str, *, oldest: float, deadline: float
) -> tuple[list[StoreProblem], str | None]:
    """Find stored `sessions` or `files` that the index does not have, not even as hidden.

    Returns them, and the last id that was read; None if all were.
    """
    old = (prefix for prefix in store.list_prefixes(parent, after) if prefix.modified_at <= oldest)
    row = FileRow if parent == FILES else SessionRow
    orphans: list[StoreProblem] = []
    while batch := list(islice(old, _IDS)):
        with database.read() as session, visible.hidden_too(session):
            chosen = sa.select(row.id).where(row.id.in_([prefix.id for prefix in batch]))
            known = set(session.scalars(chosen))
        for one in [one for one in batch if one.id not in known]:
            detail = f"{one.bytes:,} bytes that are not in the index"
            orphans.append(StoreProblem(id=one.id, problem="orphaned", detail=detail))
        if time.monotonic() >= deadline:
            return orphans, batch[-1].id
    return orphans, None
