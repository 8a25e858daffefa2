"""Stored sessions of synthetic rows, and a drain of analyses on them."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actograph.contract.job_specs import job_spec_adapter
from actograph.contract.resources import TensorInfo
from actograph.settings import Settings
from storage.artifacts.factory import open_store
from storage.artifacts.store import ArtifactStore
from storage.index.database import Database
from storage.jobs import jobs
from storage.queue import workers
from storage.samples import NewSample
from storage.sessions import sessions as stored_sessions
from storage.sessions.filter import SessionFilter
from storage.sessions.manifest import StoredTensor
from storage.sessions.reader import SessionReader
from storage.sessions.writer import SessionWriter, TensorRows
from tests.support import leasing
from tests.support.samples import manifest_of, result, session_of
from tests.support.submitting import insert, insert_capture
from worker.analysis.drain import AnalysisDrain
from worker.signals.stop_signal import StopSignal

Rows = Mapping[str, NDArray[Any]]
WORKER = "wrk_analysis"


def store_sessions(
    database: Database,
    store: ArtifactStore,
    sessions: Sequence[Rows],
    *,
    correct: Sequence[bool | None] | None = None,
    conditions: Sequence[str] = (),
    prompts: Sequence[str] = (),
    prefill: bool = False,
) -> str:
    """Store a session of a prompt for each item, as a job with these conditions. Returns its id.

    Args:
        prompts: of each sample; "p" by default.
        prefill: nothing was generated.
    """
    names = [{"name": name} for name in conditions]
    count = len(sessions) // max(1, len(conditions))
    job_id = insert_capture(database, prompts or ["p"] * count, conditions=names)
    for lease, rows in zip(leasing.begin(database, job_id, len(sessions)), sessions, strict=True):
        assert lease.session_id is not None
        (tokens,) = {len(array) for array in rows.values()}
        kinds = {name: "I32" if array.dtype == np.int32 else "F32" for name, array in rows.items()}
        infos = {name: StoredTensor(shape=array.shape, dtype=kinds[name]) for name, array in rows.items()}
        about = {"prompt_tokens": tokens, "generated_tokens": 0, "sample_index": lease.sample_index}
        manifest = manifest_of(
            lease.session_id, infos, job_id=job_id, sample_id=lease.id, **about, segments=[]
        )
        with SessionWriter(store, lease.session_id) as writer:
            writer.write_shard(
                [
                    TensorRows(name, kinds[name], array.shape, 0, np.ascontiguousarray(array))
                    for name, array in rows.items()
                ]
            )
            files = writer.finish(manifest, range(tokens))
        new = session_of(
            lease,
            condition=lease.condition,
            correct=None if correct is None else correct[lease.sample_index],
            rows=tokens,
            files=files,
            hooks={name: TensorInfo(shape=array.shape, dtype=kinds[name]) for name, array in rows.items()},
            prompt_tokens=tokens,
            generated_tokens=0,
        )
        with database.write() as session:
            prompt = prompts[lease.sample_index] if prompts else "p"
            answer = {"completion": "", "generated_tokens": 0} if prefill else {}
            done = result(session_id=lease.session_id, prompt=prompt, **answer)
            leasing.complete(session, lease, done, new)
    return job_id


def insert_analysis(database: Database, body: Mapping[str, Any], owner: str = "") -> str:
    """Insert an analysis, unchecked. Returns its id."""
    sample = NewSample(sample_index=0, condition="", epoch=0, input={}, seed=0)
    return insert(database, job_spec_adapter.validate_python(body), [sample], owner=owner)


def drain_of(
    settings: Settings, database: Database, store: ArtifactStore, worker_id: str = WORKER, **options: Any
) -> AnalysisDrain:
    """The drain of a registered worker."""
    with database.write() as session:
        workers.register(session, worker_id, hostname="here", pid=1, model="=analysis")
    stop = StopSignal()
    return AnalysisDrain(
        settings=settings, database=database, store=store, worker_id=worker_id, stop=stop, **options
    )


class Killed(BaseException):
    """Ends the process, as far as the code under test can tell."""


class WatchedStore:
    """Notes the sessions that are read, and runs `act` before the read of one."""

    def __init__(self, store: ArtifactStore) -> None:
        self._store = store
        self.read_keys: list[str] = []
        self.at = -1
        self.act: Callable[[], None] = lambda: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def read(self, key: str, start: int, length: int) -> bytes:
        if len(self.read_keys) == self.at:
            self.act()
        self.read_keys.append(key)
        return self._store.read(key, start, length)


class World:
    """A service with a home folder, and without API or processes."""

    def __init__(self, database: Database, folder: Path, store: str = "", **settings: Any) -> None:
        """`store`: URL of the store; by default a folder."""
        self.settings = Settings(home=folder, **settings)
        (folder / "store").mkdir()
        self.database, self.store = database, open_store(store or (folder / "store").as_uri())

    def run(self, store: Any = None, worker_id: str = WORKER, **body: Any) -> str:
        job_id = insert_analysis(self.database, body)
        drain_of(self.settings, self.database, store or self.store, worker_id).look()
        return job_id

    def job(self, job_id: str) -> Any:
        with self.database.read() as session:
            return jobs.get(session, job_id)

    def files(self, job_id: str) -> dict[str, bytes]:
        """The files of the results, verified."""
        with self.database.read() as session:
            (row,) = stored_sessions.find(session, SessionFilter(job_id=job_id), limit=10)[0]
        SessionReader(self.store, row.id).verify()
        return {name: b"".join(self.store.stream(f"sessions/{row.id}/{name}")) for name in row.files}

    def result(self, job_id: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.files(job_id)["result.json"])
        return found
