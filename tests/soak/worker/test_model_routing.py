"""Two workers, two real models: who takes whose jobs, and how often a model is loaded."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from actograph.contract.models import ModelStructure
from actograph.contract.resources import JobStatus
from actograph.settings import Settings
from storage.artifacts.factory import open_store
from storage.index.database import Database
from storage.index.ids import new_worker_id
from storage.jobs import jobs
from storage.queue import workers
from storage.tables.models import SampleRow
from tests.support.submitting import insert_capture
from worker.drain.drain import Drain
from worker.drain.model_holder import ModelHolder
from worker.signals.stop_signal import StopSignal

pytestmark = pytest.mark.integration

FIRST, SECOND = "tiny-qwen3", "stories260k"


class Queues:
    """A broker in memory with a queue for each model, as the real one has."""

    def __init__(self) -> None:
        self.waiting: Counter[str] = Counter()

    def wake(self, model: str) -> bool:
        self.waiting[model] += 1
        return True


class Worker:
    """A worker in this process; it reads the queues that a real one reads."""

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
            models=self.holder,
            worker_id=self.id,
            stop=StopSignal(),
            may_load=served,
        )
        self.drain.load(served[0])

    def _note(self, structure: ModelStructure) -> None:
        self.loaded.append(structure.model)
        with self._database.write() as session:
            workers.set_ready(session, self.id, structure)

    def take_one(self) -> bool:
        """Serve one message, if there is one for this worker."""
        for model in self._served:
            if self._queues.waiting[model]:
                self._queues.waiting[model] -= 1
                self.drain.serve()
                return True
        return False


@pytest.fixture
def database(sqlite: Database) -> Database:
    return sqlite


Make = Callable[..., Worker]


@pytest.fixture
def queues() -> Queues:
    return Queues()


@pytest.fixture
def make(tmp_path: Path, shared: Path, database: Database, queues: Queues) -> Iterator[Make]:
    torch.set_num_threads(2)
    made: list[Worker] = []

    def start(served: Sequence[str], **changes: Any) -> Worker:
        model, *others = (f"{name}={shared / 'models' / name}" for name in served)
        settings = Settings(
            home=tmp_path, model=model, allowed_models=tuple(others), device="cpu", slots=1,
            **changes,
        )  # fmt: skip
        made.append(Worker(settings, database, queues, served))
        return made[-1]

    yield start
    for worker in made:
        worker.holder.close()


def submit(database: Database, queues: Queues, model: str, count: int = 3) -> str:
    prompts = [f"one {n}" for n in range(count)]
    job_id = insert_capture(database, prompts, model=model, capture=None, sampling={"max_tokens": 2})
    queues.wake(model)
    return job_id


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
        assert workers.held_models(session) == {FIRST, SECOND}
    assert (fixed.loaded, free.loaded) == ([FIRST], [FIRST, SECOND])


@pytest.mark.parametrize(
    ("hold_seconds", "loads"),
    [(600.0, [FIRST, SECOND]), (0.0, [FIRST, SECOND] * 3)],
    ids=["grouped", "in-turn"],
)
def test_jobs_of_two_models_are_grouped_for_as_long_as_a_model_is_held(
    database: Database, queues: Queues, make: Make, hold_seconds: float, loads: list[str]
) -> None:
    worker = make([FIRST, SECOND], model_hold_seconds=hold_seconds)
    made = [submit(database, queues, model) for model in (FIRST, SECOND)]
    assert worker.drain.look()
    with database.read() as session:
        assert {jobs.status_of(session, job_id) for job_id in made} == {JobStatus.COMPLETED}
    assert worker.loaded == loads
