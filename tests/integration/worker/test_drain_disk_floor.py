"""A drain on a disk that fills up: it stops between two batches, and takes up all that was left."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from actograph.contract.job_specs import job_spec_adapter
from actograph.contract.resources import JobStatus, SampleStatus
from actograph.settings import Settings
from storage import samples
from storage.artifacts.factory import open_store
from storage.index.database import Database
from storage.jobs import jobs
from storage.queue import waiting, workers
from storage.samples.expansion import capture_samples
from tests.support.indexes import create_index
from worker.drain.drain import Drain
from worker.engine.engine import Engine
from worker.engine.model.load import load_model
from worker.signals.stop_signal import StopSignal

pytestmark = pytest.mark.integration

MODEL = "tiny-qwen3"
WORKER = "wrk_" + "0" * 32
FLOOR = 1000


class DiskThatFills:
    """The real store, on a disk that sinks below the floor once so many sessions are stored."""

    def __init__(self, store: Any, room: int) -> None:
        self._store = store
        self.room = room

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def free_bytes(self) -> int:
        stored = len(list(self._store.list_prefixes("sessions")))
        return FLOOR if stored < self.room else FLOOR - 1


class OneModel:
    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def engine_for(self, name: str) -> Engine:
        assert name == MODEL
        return self.engine


class Broker:
    def __init__(self) -> None:
        self.woken: list[str] = []

    def wake(self, model: str, hops: int = 0) -> bool:
        self.woken.append(model)
        return True


@pytest.fixture(scope="module")
def engine(shared: Path) -> Engine:
    torch.set_num_threads(2)
    return Engine(load_model(str(shared / "models" / MODEL), name=MODEL, device="cpu"))


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database(f"sqlite:///{tmp_path / 'actograph.db'}")
    create_index(opened)
    with opened.write() as session:
        workers.register(session, WORKER, hostname="here", pid=1, model=MODEL)
    yield opened
    opened.close()


def test_a_full_disk_stops_the_drain_between_two_units(
    tmp_path: Path, engine: Engine, database: Database
) -> None:
    settings = Settings(home=tmp_path, disk_floor_bytes=FLOOR, batch_size=2)
    disk, broker = DiskThatFills(open_store(settings.effective_artifact_url), room=3), Broker()
    drain = Drain(
        settings=settings,
        database=database,
        store=disk,
        broker=broker,  # type: ignore[arg-type]
        models=OneModel(engine),  # type: ignore[arg-type]
        worker_id=WORKER,
        stop=StopSignal.create(tmp_path),
    )
    body = {
        "kind": "capture",
        "model": MODEL,
        "inputs": [{"prompt": f"{n} and {n}"} for n in range(7)],
        "capture": {"layers": [0]},
        "sampling": {"max_tokens": 4},
    }
    spec: Any = job_spec_adapter.validate_python(body)
    with database.write() as session:
        row = jobs.create(session, kind="capture", model=MODEL, spec=spec, hooks=None, total=7)
        samples.insert(session, row.id, capture_samples(spec))

    def state() -> tuple[JobStatus | None, list[int]]:
        with database.read() as session:
            found, _ = samples.find(session, row.id, limit=100)
            completed = [s.attempts for s in found if s.status == SampleStatus.COMPLETED]
            assert not [s for s in found if s.status in (SampleStatus.LEASED, SampleStatus.FAILED)]
            return jobs.status_of(session, row.id), completed

    drain.run_slice(row.id)
    assert state() == (JobStatus.IN_PROGRESS, [1] * 4)
    drain.run_slice(row.id)
    assert state() == (JobStatus.IN_PROGRESS, [1] * 4)
    with database.read() as session:
        assert [job.id for job in waiting.claimable(session)] == [row.id], "the reconciler finds it"
        assert workers.busy_job_ids(session) == []
    disk.room = 100
    drain.run_slice(row.id)
    assert state() == (JobStatus.COMPLETED, [1] * 7)
