"""The application behind a socket, a worker's drain on a real small model, and the openai package.

Only Celery is missing: a thread runs the drain for every job that waits.
"""

import threading
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
import uvicorn
from fastapi import FastAPI

from actograph.contract.resources import Job
from actograph.settings import Settings
from actograph.stack.ports import free_port
from api.app import create_app
from storage import samples
from storage.artifacts.factory import open_store
from storage.artifacts.store import ArtifactStore
from storage.index.database import Database
from storage.jobs import jobs
from storage.queue import view, workers
from storage.sessions.writer import SessionReader
from storage.tables.models import SampleRow
from tests.support.engine_double import OneModel
from tests.support.indexes import create_index
from worker.drain.drain import Drain
from worker.engine.engine import Engine
from worker.signals.stop_signal import StopSignal

MODEL = "tiny-qwen3"
ASKED: list[Any] = [{"role": "user", "content": "Tom has 3 apples and buys 4 more. How many?"}]
WORKER = "wrk_" + "0" * 32


@dataclass
class Service:
    url: str
    settings: Settings
    database: Database
    store: ArtifactStore
    engine: Engine
    #: a copy of the model, since a run that has not ended has its hooks on the engine's own
    plain: Any
    #: cleared, nothing is begun
    works: threading.Event
    app: FastAPI

    def client(self, **changes: Any) -> openai.OpenAI:
        options: dict[str, Any] = {"base_url": f"{self.url}/v1", "api_key": "none", "max_retries": 0}
        return openai.OpenAI(**options | {"timeout": 60.0} | changes)

    def job(self, job_id: str) -> Job:
        with self.database.read() as session:
            return view.job(session, jobs.get(session, job_id))

    def jobs(self) -> list[Job]:
        with self.database.read() as session:
            rows, _ = jobs.find(session, {"kind": "chat"}, limit=100)
            return [view.job(session, row) for row in rows]

    def samples(self, job_id: str) -> list[SampleRow]:
        with self.database.read() as session:
            return list(samples.find(session, job_id, limit=100)[0])

    def session(self, session_id: str) -> SessionReader:
        return SessionReader(self.store, session_id)

    def ids(self, text: str) -> list[int]:
        return list(self.engine.model.tokenizer.encode(text, add_special_tokens=False))

    def forward(self, ids: list[int]) -> torch.Tensor:
        """Log probabilities [tokens, vocab] of one plain forward."""
        with torch.inference_mode():
            logits: torch.Tensor = self.plain(torch.tensor([ids])).logits[0]
        return logits.float().log_softmax(-1)


@pytest.fixture
def service(tmp_path: Path, redis_url: str, engine: Engine) -> Iterator[Service]:
    settings = Settings(
        home=tmp_path,
        broker_url=redis_url,
        model=MODEL,
        reconcile_seconds=3600,
        disk_floor_bytes=0,
        batch_max_requests=100,
    )
    database = Database(settings.effective_database_url)
    create_index(database)
    with database.write() as session:
        workers.register(session, WORKER, hostname="here", pid=1, model=MODEL)
        workers.set_ready(session, WORKER, engine.structure)
    store = open_store(settings.effective_artifact_url)
    stop, plain = StopSignal(), deepcopy(engine.model.hf)
    drain = Drain(
        settings=settings,
        database=database,
        store=store,
        models=OneModel(MODEL, engine),  # type: ignore[arg-type]
        worker_id=WORKER,
        stop=stop,
    )
    works, over = threading.Event(), threading.Event()
    works.set()

    def work() -> None:
        while not over.wait(0.005):
            if not works.is_set():
                continue
            drain.look()

    port = free_port("127.0.0.1")
    app = create_app(settings)
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_config=None))
    threads = [threading.Thread(target=target, daemon=True) for target in (server.run, work)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 120
    while not server.started:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    yield Service(f"http://127.0.0.1:{port}", settings, database, store, engine, plain, works, app)
    server.should_exit = True
    over.set()
    stop.set()
    for thread in threads:
        thread.join(120)
    database.close()


@pytest.fixture
def client(service: Service) -> Iterator[openai.OpenAI]:
    with service.client() as client:
        yield client


@pytest.fixture
def says(service: Service) -> Iterator[Callable[[str], None]]:
    """Makes the model say a text, whatever it is asked."""
    handles: list[Any] = []

    def say(text: str) -> None:
        for handle in handles:
            handle.remove()
        wanted = [*service.ids(text), *service.engine.model.eos_token_ids]
        place = [0]

        def force(_module: Any, _inputs: Any, logits: torch.Tensor) -> torch.Tensor:
            logits[..., -1, :] = -1e4
            logits[..., -1, wanted[place[0] % len(wanted)]] = 1e4
            place[0] += 1
            return logits

        handles.append(service.engine.model.hf.get_submodule("lm_head").register_forward_hook(force))

    yield say
    for handle in handles:
        handle.remove()
