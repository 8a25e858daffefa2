"""A drain on a real database, a real store and a real small model, without a broker."""

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from actograph.contract.job_specs import CaptureJobSpec, job_spec_adapter
from actograph.contract.resources import JobStatus, Sample, SampleStatus
from actograph.contract.specs import HubDataset
from actograph.settings import Settings
from evals.task_rows import row_form
from storage import samples
from storage.artifacts.factory import open_store
from storage.artifacts.store import ArtifactStore
from storage.files import dataset_sources
from storage.index.database import Database
from storage.jobs import jobs
from storage.queue import workers
from storage.samples.expansion import evaluation_samples
from storage.sessions import sessions
from tests.support.engine_double import OneModel
from tests.support.local_engine import local
from tests.support.submitting import insert
from tests.support.waiting import wait_until
from worker.drain.drain import Drain
from worker.engine.engine import Engine
from worker.signals.stop_signal import StopSignal

MODEL = "tiny-qwen3"
PROBLEMS = [
    {"question": f"Tom has {a} apples and buys {b} more. How many?", "answer": f"{a}+{b}\n#### {a + b}"}
    for a, b in [(12, 30), (45, 11), (70, 25), (10, 10), (33, 44)]
]


@dataclass
class Bench:
    settings: Settings
    database: Database
    store: ArtifactStore
    engine: Engine
    stop: StopSignal
    problems: list[dict[str, str]] = field(default_factory=lambda: list(PROBLEMS))

    @property
    def tokenizer(self) -> Any:
        return local(self.engine).tokenizer

    def drain(self, worker_id: str = "wrk_" + "0" * 32, **changes: Any) -> Drain:
        with self.database.write() as session:
            if worker_id not in {w.id for w in workers.find(session)}:
                workers.register(
                    session,
                    worker_id,
                    hostname="here",
                    pid=1,
                    pid_namespace="here",
                    process_started=1,
                    model=MODEL,
                )
        settings = self.settings.model_copy(update=changes)
        return Drain(
            settings=settings,
            database=self.database,
            store=self.store,
            models=OneModel(MODEL, self.engine, slots=settings.slots),  # type: ignore[arg-type]
            worker_id=worker_id,
            stop=self.stop,
        )

    def submit(self, rows: list[dict[str, str]] | None = None, **changes: Any) -> str:
        """An evaluation of `rows`, or a capture job where `inputs` are among the changes."""
        body: dict[str, Any] = {"model": MODEL, "sampling": {"max_tokens": 8}} | changes
        if "inputs" in body:
            spec: Any = job_spec_adapter.validate_python({"kind": "capture"} | body)
        else:
            path = Path(self.settings.data_roots[0]) / "problems.jsonl"
            path.write_text("".join(json.dumps(row) + "\n" for row in rows or PROBLEMS))
            body.setdefault("dataset", {"path": "problems.jsonl"})
            spec = job_spec_adapter.validate_python({"kind": "evaluation"} | body)
        if isinstance(spec, CaptureJobSpec):
            return insert(self.database, spec)
        if isinstance(spec.dataset, HubDataset):
            with self.database.write() as session:
                return jobs.create(session, spec).id
        uploads = dataset_sources.Uploads(self.database, self.store)
        read = dataset_sources.read(spec.dataset, uploads, self.settings.data_roots, row_form(spec.task))
        return insert(self.database, spec, evaluation_samples(spec, list(read)))

    def run_until(self, job_id: str, act: Callable[[], None]) -> None:
        """Run a drain, and `act` while the job's first samples run."""
        thread = threading.Thread(target=self.drain().look)
        thread.start()
        wait_until(lambda: SampleStatus.LEASED in {sample.status for sample in self.samples(job_id)})
        act()
        thread.join(timeout=60)
        assert not thread.is_alive()

    def samples(self, job_id: str) -> list[Sample]:
        with self.database.read() as session:
            rows, _ = samples.find(session, job_id, limit=1000)
            return [samples.resource(row) for row in rows]

    def status(self, job_id: str) -> JobStatus | None:
        with self.database.read() as session:
            return jobs.status_of(session, job_id)

    def stored_sessions(self) -> set[str]:
        return {p.prefix.removeprefix("sessions/") for p in self.store.list_prefixes("sessions")}

    def indexed_sessions(self) -> set[str]:
        with self.database.read() as session:
            return set(sessions.ids(session, sessions.SessionFilter()))


@pytest.fixture
def bench(tmp_path: Path, engine: Engine, sqlite: Database) -> Bench:
    (tmp_path / "data").mkdir()
    settings = Settings(home=tmp_path, data_roots=(str(tmp_path / "data"),), lease_seconds=30, slots=4)
    store = open_store(settings.effective_artifact_url)
    return Bench(settings, sqlite, store, engine, StopSignal())
