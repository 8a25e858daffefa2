"""A worker that is asked to load a model: unload, load, prove; a refusal leaves the old one."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from actograph.contract.model_loads import ModelLoadOptions
from actograph.contract.operations import WorkerStatus
from actograph.contract.resources import JobStatus
from actograph.settings import Settings
from storage.artifacts.factory import open_store
from storage.index import events
from storage.index.database import Database
from storage.jobs import jobs
from storage.queue import model_loads, workers
from storage.tables.models import JobRow
from tests.support.indexes import create_index
from tests.support.submitting import insert_capture
from worker.drain.drain import Drain
from worker.drain.model_holder import ModelHolder
from worker.signals.stop_signal import StopSignal

pytestmark = pytest.mark.integration

QWEN, LLAMA = "tiny-qwen3", "stories260k"
WORKER = "wrk_" + "0" * 32


class Bench:
    """A worker with two served models, without its process."""

    def __init__(self, home: Path, shared: Path) -> None:
        torch.set_num_threads(2)
        first, second = (f"{name}={shared / 'models' / name}" for name in (QWEN, LLAMA))
        broken = f"broken={home}"
        self.settings = Settings(
            home=home, model=first, allowed_models=(second, broken), device="cpu", dtype="float32"
        )
        self.database = Database(self.settings.effective_database_url)
        create_index(self.database)
        self.loads: list[str] = []
        self.holder = ModelHolder(self.settings, self._loaded, self._options_of)
        with self.database.write() as session:
            workers.register(session, WORKER, hostname="here", pid=1, model=QWEN)
        self.drain = Drain(
            settings=self.settings,
            database=self.database,
            store=open_store(self.settings.effective_artifact_url),
            models=self.holder,
            worker_id=WORKER,
            stop=StopSignal(),
            may_load=(QWEN, LLAMA, "broken", "elsewhere"),
        )
        self.drain.load(QWEN)

    def _loaded(self, structure: Any) -> None:
        self.loads.append(structure.model)
        with self.database.write() as session:
            model_loads.loaded(session, WORKER, structure, self.holder.options)

    def _options_of(self, model: str) -> ModelLoadOptions:
        with self.database.read() as session:
            return model_loads.options_in_force(session, model)

    def load(self, model: str, **options: Any) -> tuple[JobStatus, str]:
        """Ask for a model and let the worker do it; status and reason."""
        with self.database.write() as session:
            row = model_loads.create(session, model, ModelLoadOptions.model_validate(options))
        self.drain.look(1)
        with self.database.read() as session:
            found = model_loads.resource(session, jobs.get(session, row.id))
        return found.status, found.error.message if found.error else ""

    def run(self, model: str, hooks: list[str]) -> Any:
        """Run a capture job; the job as the index has it afterwards."""
        job_id = insert_capture(
            self.database, ["one two"], model=model, capture={"hooks": hooks}, sampling={"max_tokens": 2}
        )
        self.drain.look(1)
        with self.database.read() as session:
            return jobs.get(session, job_id)

    def worker(self) -> tuple[WorkerStatus, str | None]:
        with self.database.read() as session:
            (row,) = workers.find(session)
            shown = workers.resource(row)
        return shown.status, shown.model


@pytest.fixture
def bench(tmp_path: Path, shared: Path) -> Iterator[Bench]:
    made = Bench(tmp_path, shared)
    yield made
    made.holder.close()
    made.database.close()


def test_a_model_is_loaded_as_asked_and_stays_so(bench: Bench) -> None:
    savepoints = [{"name": "late", "selector": "model.layers[3].output"}]
    assert bench.load(
        LLAMA, dtype="bfloat16", device_map="cpu", attn_implementation="eager", savepoints=savepoints
    ) == (JobStatus.COMPLETED, "")
    assert bench.worker() == (WorkerStatus.READY, LLAMA)
    structure = bench.holder.engine_for(LLAMA).structure
    assert structure.dtype == "bfloat16"
    assert structure.identity is not None and structure.identity.attn_implementation == "eager"
    with bench.database.read() as session:
        stored = workers.structure(session, LLAMA)
    assert stored is not None
    assert stored.savepoints == {"late": "resid_post.3"}
    job = bench.run(LLAMA, ["late"])
    assert (job.status, job.hooks) == (JobStatus.COMPLETED, ["resid_post.3"])
    assert bench.loads == [QWEN, LLAMA], "its options hold for the jobs that follow"
    # another model and back: the options are those of the last request that succeeded
    assert bench.run(QWEN, ["resid_post.0"]).status == JobStatus.COMPLETED
    assert bench.run(LLAMA, ["late"]).status == JobStatus.COMPLETED
    assert bench.holder.engine_for(LLAMA).structure.dtype == "bfloat16"
    assert bench.load(LLAMA) == (JobStatus.COMPLETED, "")
    assert bench.holder.engine_for(LLAMA).structure.dtype == "float32"
    assert bench.run(LLAMA, ["late"]).status == JobStatus.FAILED


def test_a_load_tells_its_memory_to_the_job_that_caused_it_and_to_the_worker(bench: Bench) -> None:
    assert bench.load(LLAMA) == (JobStatus.COMPLETED, "")
    caused = bench.run(QWEN, ["resid_post.0"]).id
    not_caused = bench.run(QWEN, ["resid_post.0"]).id
    with bench.database.read() as session:
        (load,) = [row.id for row in session.query(JobRow).where(JobRow.kind == jobs.LOAD)]
        logs = {one: events.after(session, one, 0) for one in (load, caused, not_caused)}
    told = {one: [event.data for event in log if event.event == "model.loaded"] for one, log in logs.items()}
    assert told[not_caused] == []
    for one, model in ((load, LLAMA), (caused, QWEN)):
        (data,) = told[one]
        assert (data["model"], data["worker_id"]) == (model, WORKER)
        memory = data["memory"]
        assert 0 < memory["before_bytes"] <= memory["peak_bytes"] >= memory["after_bytes"] > 0
    numbers = bench.holder.memory()
    assert {f"load_{name}": size for name, size in memory.items()}.items() <= numbers.items()
    assert numbers["run_peak_bytes"] >= numbers["run_after_bytes"] > 0


@pytest.mark.parametrize(
    ("model", "options", "says"),
    [
        ("broken", {}, "there is no config.json"),
        (LLAMA, {"max_memory": {"cpu": 1000}}, "max_memory allows 1,000"),
        (LLAMA, {"savepoints": [{"name": "a", "selector": "resid_post.9"}]}, "savepoint a: resid_post.9"),
        (LLAMA, {"device_map": "cuda:7"}, "cuda:7"),
        (LLAMA, {"device_map": {"model": 7, "lm_head": "cpu"}}, "device_map names GPU 7; there are"),
        (LLAMA, {"device_map": {"model.layers": "cpu"}}, "cannot be loaded"),
        (LLAMA, {"device_map": "cpu", "max_memory": {"cpu": "2 KB"}}, "max_memory allows 2,000"),
        ("elsewhere", {}, "not served by this worker"),
    ],
)
def test_a_refusal_is_told_and_the_worker_goes_on_as_before(
    bench: Bench, model: str, options: dict[str, Any], says: str
) -> None:
    status, reason = bench.load(model, **options)
    assert status is JobStatus.FAILED
    assert says in reason
    assert bench.worker() == (WorkerStatus.READY, QWEN)
    assert bench.run(QWEN, ["resid_post.1"]).status == JobStatus.COMPLETED
    assert bench.loads in ([QWEN, QWEN], [QWEN]), "loaded again where it had to go"
    assert bench.run(LLAMA, ["resid_post.1"]).status == JobStatus.COMPLETED


def test_a_request_that_was_cancelled_is_not_begun(bench: Bench) -> None:
    with bench.database.write() as session:
        row = model_loads.create(session, LLAMA, ModelLoadOptions())
        jobs.cancel(session, row.id)
    bench.drain.look()
    assert bench.loads == [QWEN]
    with bench.database.read() as session:
        assert jobs.status_of(session, row.id) is JobStatus.CANCELLED
