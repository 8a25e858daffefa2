"""Two jobs of two models side by side: how often a model is loaded, counted on real models."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from actograph.contract.job_specs import job_spec_adapter
from actograph.contract.resources import JobStatus
from actograph.settings import Settings
from storage import samples
from storage.artifacts.factory import open_store
from storage.broker.broker import Broker
from storage.index.database import Database
from storage.jobs import jobs
from storage.queue import workers
from storage.samples.expansion import capture_samples
from tests.support.indexes import create_index
from worker.drain.drain import Drain
from worker.drain.model_holder import ModelHolder
from worker.signals.stop_signal import StopSignal

pytestmark = pytest.mark.integration

MODELS = ("tiny-qwen3", "stories260k")
WORKER = "wrk_" + "0" * 32


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database(f"sqlite:///{tmp_path / 'actograph.db'}")
    create_index(opened)
    with opened.write() as session:
        workers.register(session, WORKER, hostname="here", pid=1, model=MODELS[0])
    yield opened
    opened.close()


def submit(database: Database, model: str) -> str:
    body = {
        "kind": "capture",
        "model": model,
        "inputs": [{"prompt": f"one {n}"} for n in range(3)],
        "capture": None,
        "sampling": {"max_tokens": 2},
    }
    spec: Any = job_spec_adapter.validate_python(body)
    with database.write() as session:
        row = jobs.create(session, kind="capture", model=model, spec=spec, hooks=[], total=3)
        samples.insert(session, row.id, capture_samples(spec))
        return row.id


@pytest.mark.parametrize(
    ("hold_seconds", "loads"),
    [(600.0, [MODELS[0], MODELS[1]]), (0.0, [MODELS[0], MODELS[1]] * 3)],
    ids=["grouped", "in-turn"],
)
def test_two_jobs_of_two_models_load_each_once(
    tmp_path: Path, shared: Path, database: Database, hold_seconds: float, loads: list[str]
) -> None:
    torch.set_num_threads(2)
    first, second = (f"{name}={shared / 'models' / name}" for name in MODELS)
    settings = Settings(
        home=tmp_path,
        model=first,
        allowed_models=(second,),
        device="cpu",
        batch_size=1,
        slice_seconds=1e-6,
        model_hold_seconds=hold_seconds,
    )
    loaded: list[str] = []
    holder = ModelHolder(settings, lambda structure: loaded.append(structure.model))
    drain = Drain(
        settings=settings,
        database=database,
        store=open_store(settings.effective_artifact_url),
        broker=Broker(settings.broker_url),
        models=holder,
        worker_id=WORKER,
        stop=StopSignal.create(tmp_path),
        may_load=MODELS,
    )
    ids = [submit(database, name) for name in MODELS]
    drain.load(MODELS[0])
    assert drain.look()
    with database.read() as session:
        assert [jobs.status_of(session, job_id) for job_id in ids] == [JobStatus.COMPLETED] * 2
    assert loaded == loads
    assert holder.memory()["device_available_bytes"] > 0
    holder.unload()
