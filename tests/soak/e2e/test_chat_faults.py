"""Chats while processes of the service are killed: each client gets the whole, right text, once."""

import json
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest
import redis

from actograph.client import Client
from actograph.contract.errors import ActographError
from actograph.contract.resources import JobStatus
from storage.index.database import Database
from storage.jobs import jobs
from tests.support.broker import broker_of
from tests.support.processes import is_broker, words_of

pytestmark = [pytest.mark.e2e, pytest.mark.integration]

MODEL = "tiny-qwen3"
#: as many as are cut short at once
STREAMS = 8
#: of a model that never ends by itself: some seconds, in the middle of which a fault comes
TOKENS = 1200

Up = Callable[..., Any]
Wait = Callable[..., None]


@dataclass
class Listener:
    """One client that reads a stream in a thread of its own."""

    service: Any
    number: int
    text: str = ""
    run_id: str = ""
    began: threading.Event = field(default_factory=threading.Event)

    def listen(self) -> str:
        """The whole text. Raises what the openai package does."""
        with client_of(self.service) as client:
            for chunk in client.chat.completions.create(stream=True, **options(self.number)):
                self.run_id = chunk.run_id
                self.text += "".join(choice.delta.content or "" for choice in chunk.choices)
                if len(self.text) > 20:
                    self.began.set()
        return self.text


def client_of(service: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{service.url}/v1", api_key="none", max_retries=0, timeout=120)


def options(number: int) -> dict[str, Any]:
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": f"Count from {number}."}],
        "max_tokens": TOKENS,
        "temperature": 1.5,
        "seed": number,
    }


def answers(service: Any) -> list[str]:
    """What the streams say where nothing disturbs them."""

    def ask(number: int) -> str:
        with client_of(service) as client:
            return client.chat.completions.create(**options(number)).choices[0].message.content or ""

    with ThreadPoolExecutor(STREAMS) as pool:
        return list(pool.map(ask, range(STREAMS)))


def begin(service: Any, pool: ThreadPoolExecutor) -> tuple[list[Listener], list[Future[str]]]:
    """Open the streams, and wait until each has said something and none has ended."""
    listeners = [Listener(service, number) for number in range(STREAMS)]
    futures = [pool.submit(listener.listen) for listener in listeners]
    for listener, future in zip(listeners, futures, strict=True):
        while not listener.began.wait(0.1):
            assert not future.done(), future.result()
    assert not any(future.done() for future in futures)
    return listeners, futures


def model_process(service: Any) -> psutil.Process:
    """The engine's process, which holds the model."""
    found = [c for c in service.children() if words_of(c)[1:3] == ["-m", "worker.engine"]]
    assert len(found) == 1, found
    process: psutil.Process = found[0]
    return process


@pytest.fixture(scope="module")
def endless_model(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real small model without an end token, so that every answer has all its tokens."""
    folder = tmp_path_factory.mktemp("models") / MODEL
    shutil.copytree(shared / "models" / MODEL, folder, copy_function=shutil.copyfile)
    folder.chmod(0o755)
    for name in ("config.json", "generation_config.json", "tokenizer_config.json"):
        found = json.loads((folder / name).read_text())
        left = {key: value for key, value in found.items() if key not in ("eos_token_id", "eos_token")}
        (folder / name).write_text(json.dumps(left))
    return folder


@pytest.fixture(scope="module")
def service(module_up: Up, endless_model: Path) -> Any:
    started = module_up(model=str(endless_model))
    started.await_ready()
    return started


@pytest.fixture(scope="module")
def undisturbed(service: Any) -> list[str]:
    return answers(service)


def test_streams_go_on_where_they_were_when_the_worker_is_killed(
    service: Any, undisturbed: list[str]
) -> None:
    with ThreadPoolExecutor(STREAMS) as pool:
        _, futures = begin(service, pool)
        model_process(service).kill()
        assert [future.result() for future in futures] == undisturbed


def test_streams_go_on_when_the_broker_forgets_and_dies(service: Any, undisturbed: list[str]) -> None:
    port, password = broker_of(service.home)
    broker = next(filter(is_broker, service.children()))
    with ThreadPoolExecutor(STREAMS) as pool, redis.Redis(port=port, password=password) as known:
        _, futures = begin(service, pool)
        known.flushall()
        broker.kill()
        assert [future.result() for future in futures] == undisturbed


def test_an_api_that_is_killed_breaks_its_streams_and_leaves_nothing_behind(service: Any, wait: Wait) -> None:
    with ThreadPoolExecutor(STREAMS) as pool:
        listeners, futures = begin(service, pool)
        service.child("api").kill()
        for future in futures:
            assert isinstance(future.exception(), openai.APIError | httpx.TransportError)
    wait(lambda: is_ready(service))
    with Client(service.url, "") as client:
        # nobody waits for them any more, and they end all the same
        wait(lambda: not any(client.queue.get().jobs.values()))
        ended = {client.jobs.get(listener.run_id).status for listener in listeners}
    assert ended <= {JobStatus.COMPLETED, JobStatus.CANCELLED}
    with client_of(service) as client:
        assert client.chat.completions.create(**options(0) | {"max_tokens": 3}).choices[0].message.content


def test_a_stop_in_good_order_ends_each_stream_with_its_text_or_with_the_reason(
    service: Any, undisturbed: list[str]
) -> None:
    """A worker that stops lets a unit that ends within seconds end."""
    with ThreadPoolExecutor(STREAMS) as pool:
        listeners, futures = begin(service, pool)
        assert service.stop() == 0
    database = Database(f"sqlite:///{service.home / 'actograph.db'}")
    for listener, future, text in zip(listeners, futures, undisturbed, strict=True):
        error = future.exception()
        with database.read() as session:
            status = jobs.status_of(session, listener.run_id)
        if error is None:
            assert (future.result(), status) == (text, JobStatus.COMPLETED)
        else:
            assert isinstance(error, openai.APIError) and "the service is stopping" in str(error)
            # nothing is run after the next start for a client that is gone
            assert status == JobStatus.CANCELLED
    database.close()


def is_ready(service: Any) -> bool:
    try:
        with Client(service.url, "", retries=0) as client:
            return bool(client.ready())
    except ActographError:
        return False
