"""Two workers, two real models: who takes whose jobs, and how often a model is loaded."""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from actograph.contract.resources import JobStatus, ModelStructure
from actograph.contract.specs import job_spec_adapter
from actograph.settings import Settings
from storage import migrate, samples
from storage.artifacts.factory import open_store
from storage.index.database import Database
from storage.index.ids import new_worker_id
from storage.jobs import jobs
from storage.queue import routing, workers
from storage.samples.expansion import capture_samples
from storage.tables.models import SampleRow
from worker.drain.drain import Drain
from worker.drain.model_holder import ModelHolder
from worker.signals.stop_signal import StopSignal

pytestmark = pytest.mark.integration

FIRST, SECOND = "tiny-qwen3", "stories260k"


class Queues:
    """A broker in memory that routes as the real one does."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.waiting: defaultdict[str, deque[str]] = defaultdict(deque)
        self.is_away = False

    def wake(self, job_id: str, priority: int) -> bool:
        if self.is_away:
            return False
        with self._database.read() as session:
            queue = routing.queue_of_job(session, job_id)
        assert queue is not None
        self.waiting[queue].append(job_id)
        return True


class Worker:
    """A worker in this process; it reads the queues that a real one subscribes to."""

    def __init__(self, settings: Settings, database: Database, queues: Queues, served: Sequence[str]) -> None:
        self.id = new_worker_id()
        self._database, self._queues, self._served = database, queues, served
        self.loaded: list[str] = []
        with database.write() as session:
            workers.register(session, self.id, hostname="here", pid=1, model=served[0], served=served)
        self.holder = ModelHolder(settings, self._note)
        self.drain = Drain(
            settings=settings,
            database=database,
            store=open_store(settings.effective_artifact_url),
            broker=queues,  # type: ignore[arg-type]
            models=self.holder,
            worker_id=self.id,
            stop=StopSignal.create(settings.home),
            may_load=served,
        )
        self.drain.load(served[0])

    def _note(self, structure: ModelStructure) -> None:
        self.loaded.append(structure.model)
        with self._database.write() as session:
            workers.set_ready(session, self.id, structure)

    def take_one(self) -> bool:
        """Serve one message, if there is one for this worker."""
        reads = [routing.holders_queue(self.loaded[-1]), *map(routing.loaders_queue, self._served)]
        for queue in reads:
            if self._queues.waiting[queue]:
                self.drain.run_slice(self._queues.waiting[queue].popleft())
                return True
        return False


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database(f"sqlite:///{tmp_path / 'actograph.db'}")
    migrate.upgrade(opened)
    yield opened
    opened.close()


Make = Callable[[Sequence[str]], Worker]


@pytest.fixture
def queues(database: Database) -> Queues:
    return Queues(database)


@pytest.fixture
def make(tmp_path: Path, shared: Path, database: Database, queues: Queues) -> Iterator[Make]:
    torch.set_num_threads(2)
    made: list[Worker] = []

    def start(served: Sequence[str]) -> Worker:
        model, *others = (f"{name}={shared / 'models' / name}" for name in served)
        settings = Settings(
            home=tmp_path, model=model, allowed_models=tuple(others), device="cpu", batch_size=1,
            slice_seconds=1e-6,
        )  # fmt: skip
        made.append(Worker(settings, database, queues, served))
        return made[-1]

    yield start
    for worker in made:
        worker.holder.unload()


def submit(database: Database, queues: Queues, model: str, count: int = 3) -> str:
    body = {
        "kind": "capture",
        "model": model,
        "inputs": [{"prompt": f"one {n}"} for n in range(count)],
        "capture": {"mode": "off"},
        "sampling": {"max_tokens": 2},
    }
    spec: Any = job_spec_adapter.validate_python(body)
    with database.write() as session:
        row = jobs.create(session, kind="capture", model=model, spec=spec, hooks=[], total=count)
        samples.insert(session, row.id, capture_samples(spec))
    queues.wake(row.id, row.priority)
    return row.id


def run(*crew: Worker) -> None:
    """Let them take messages in turn until none is left."""
    for _ in range(200):
        if not [worker for worker in crew if worker.take_one()]:
            return
    raise AssertionError("the messages never end")


def who_ran(database: Database, job_id: str) -> Counter[str]:
    with database.read() as session:
        return Counter(
            row.worker_id or "" for row in session.query(SampleRow).where(SampleRow.job_id == job_id)
        )


def test_each_worker_takes_the_jobs_of_its_own_model(database: Database, queues: Queues, make: Make) -> None:
    # both may hold both models, and neither has a reason to change
    first, second = make([FIRST, SECOND]), make([SECOND, FIRST])
    made = [submit(database, queues, model) for model in (FIRST, SECOND, SECOND, FIRST)]
    run(first, second)
    with database.read() as session:
        assert {jobs.status_of(session, job_id) for job_id in made} == {JobStatus.COMPLETED}
    assert [set(who_ran(database, job_id)) for job_id in made] == [
        {first.id}, {second.id}, {second.id}, {first.id},
    ]  # fmt: skip
    assert (first.loaded, second.loaded) == ([FIRST], [SECOND])


def test_a_model_that_nobody_holds_is_loaded_by_one_worker_that_may(
    database: Database, queues: Queues, make: Make
) -> None:
    fixed, free = make([FIRST]), make([FIRST, SECOND])
    # submitted together: the second job must not make another worker load the model too
    made = [submit(database, queues, SECOND) for _ in range(3)]
    run(fixed, free)
    with database.read() as session:
        assert {jobs.status_of(session, job_id) for job_id in made} == {JobStatus.COMPLETED}
        assert routing.held_models(session) == {FIRST, SECOND}
    assert (fixed.loaded, free.loaded) == ([FIRST], [FIRST, SECOND])


def test_idle_workers_join_a_long_job_by_asking_the_index(
    database: Database, queues: Queues, make: Make
) -> None:
    first, second, other = make([FIRST]), make([FIRST]), make([SECOND])
    job_id = submit(database, queues, FIRST, count=9)
    first.take_one()
    queues.waiting.clear()  # a Redis that was flushed
    assert not other.drain.look(), "it can do nothing for the job"
    second.drain.look()
    assert queues.waiting[routing.holders_queue(FIRST)] == deque([job_id]), "Celery knows who is free"
    queues.waiting.clear()
    second.drain.look()
    assert set(who_ran(database, job_id)) == {"", first.id, second.id}


def test_a_drain_goes_on_by_the_index_where_no_message_can_be_sent(
    database: Database, queues: Queues, make: Make
) -> None:
    fixed, free = make([FIRST]), make([FIRST, SECOND])
    queues.is_away = True
    made = [submit(database, queues, model) for model in (FIRST, SECOND, FIRST)]
    looks = 0
    # every slice of one unit asks for the next look at once
    while any(worker.drain.look() for worker in (free, fixed)):
        looks += 1
        assert looks < 50
    with database.read() as session:
        assert {jobs.status_of(session, job_id) for job_id in made} == {JobStatus.COMPLETED}
    assert fixed.loaded == [FIRST]
    assert free.loaded.count(SECOND) == 1, "jobs are grouped by model as ever"
    assert not queues.waiting
