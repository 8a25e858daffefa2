"""Reads of many sessions go on side by side: a store far away costs one wait for several sessions."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from storage.artifacts.store import ArtifactStore
from storage.index.database import Database
from storage.results import matrix
from storage.results.matrix import RowChoice
from storage.sessions.filter import SessionFilter
from tests.support.analysed import World, store_sessions
from worker.analysis.blocks import blocks

HOOK = "resid_post.0"


class Together:
    """A store whose first read waits until a second session is read."""

    def __init__(self, store: ArtifactStore) -> None:
        self._store = store
        self._sessions: set[str] = set()
        self._both = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def _arrive(self, key: str) -> None:
        self._sessions.add(key.split("/")[1])
        if len(self._sessions) > 1:
            self._both.set()
        assert self._both.wait(60), "one session is read after the other"

    def read(self, key: str, start: int, length: int) -> bytes:
        self._arrive(key)
        return self._store.read(key, start, length)

    def stream(self, key: str, *span: int) -> Any:
        self._arrive(key)
        return self._store.stream(key, *span)


def test_sessions_are_read_side_by_side(sqlite: Database, tmp_path: Path, subtests: pytest.Subtests) -> None:
    world = World(sqlite, tmp_path)
    job_id = store_sessions(world.database, world.store, [{HOOK: np.ones((6, 8), np.float32)}] * 4)
    with world.database.read() as session:
        found = matrix.sources(session, SessionFilter(job_id=job_id), [HOOK], epoch=None, limit=None)
    assert len(found) > 1
    ids = [one.id for one in found]
    with subtests.test("matrix"):
        together: Any = Together(world.store)
        choice = RowChoice(positions="all", reduce="none", max_bytes=1 << 30)
        assert len(matrix.read(together, found, HOOK, choice).pieces) == len(ids)
    with subtests.test("blocks of an analysis"):
        read = list(blocks(Together(world.store), ids, [HOOK], "all"))  # type: ignore[arg-type]
        assert [one.session for one in read if one.is_last] == list(range(len(ids)))
