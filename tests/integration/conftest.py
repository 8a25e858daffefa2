"""Fixtures of all integration tests: a real redis-server, lm-eval and Inspect themselves, a small model."""

import math
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import torch

from actograph.contract.errors import ServiceUnavailable
from actograph.contract.specs import SamplingSpec
from actograph.stack.ports import free_port
from actograph.stack.redis_server import find_executable
from tests.support import other_programs
from tests.support.asked_program import AskedProgram
from tests.support.availability import unavailable
from tests.support.engine_run import generate
from tests.support.lmeval.environment import LmEval
from tests.support.servers import Unavailable
from tests.support.waiting import wait_until
from worker.engine.engine import Engine
from worker.engine.messages import Request
from worker.engine.model.load import load_model


class RedisProcess:
    """A redis-server that tests may end and start again on the same port.

    TCP on loopback, a folder of its own, no persistence.
    """

    def __init__(self, executable: str, folder: Path) -> None:
        self._executable = executable
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port("127.0.0.1")
        self.url = f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder)]
        options += ["--save", "", "--appendonly", "no", "--daemonize", "no"]
        with (self._folder / "redis.log").open("ab") as log:
            self._process = subprocess.Popen([self._executable, *options], stdout=log, stderr=log)
        deadline = time.monotonic() + 120
        with redis.Redis(port=self.port) as client:
            while True:
                try:
                    client.ping()
                    return
                except redis.RedisError:
                    if time.monotonic() > deadline or self._process.poll() is not None:
                        raise
                    time.sleep(0.02)

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def _executable() -> str:
    try:
        return str(find_executable())
    except ServiceUnavailable as error:
        unavailable(str(error))


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One server for all tests of this process; it may hold what earlier tests left."""
    server = RedisProcess(_executable(), tmp_path_factory.mktemp("redis"))
    server.start()
    yield server.url
    server.stop()


@pytest.fixture
def redis_process(tmp_path: Path) -> Iterator[Callable[[], RedisProcess]]:
    """Makes servers that one test alone uses, to end them and start them again."""
    made: list[RedisProcess] = []

    def make() -> RedisProcess:
        made.append(RedisProcess(_executable(), tmp_path / f"redis-{len(made)}"))
        made[-1].start()
        return made[-1]

    yield make
    for server in made:
        server.stop()


@pytest.fixture(scope="session")
def lm_eval(
    shared: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., list[dict[str, Any]]]]:
    """Asks lm-eval itself, in a process and a virtual environment of its own, with GSM8K's real rows."""
    try:
        running = LmEval(shared / "data/gsm8k", tmp_path_factory.mktemp("lm-eval-cache"))
    except Unavailable as error:
        unavailable(str(error))
    with running:
        yield running.ask


@pytest.fixture(scope="session")
def inspect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., list[dict[str, Any]]]]:
    """Asks inspect_ai itself, in a process and a virtual environment of its own; see `inspect_program.py`."""
    try:
        python = other_programs.inspect()
    except Unavailable as error:
        unavailable(str(error))
    home = tmp_path_factory.mktemp("inspect-home")
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "OPENAI_API_KEY": "none"}
    command = [str(python), str(Path(__file__).with_name("inspect_program.py"))]
    with AskedProgram("inspect", command, environment, home / "inspect.log") as running:
        yield running.ask


@pytest.fixture(scope="session")
def trained(shared: Path) -> Engine:
    """One small model for all tests of this process that need no other."""
    torch.set_num_threads(1)  # as many tests run at once as there are cores
    engine = Engine(load_model(str(shared / "models" / "tiny-qwen3"), name="tiny-qwen3", device="cpu"))
    # the first generation of an engine runs one pass more; hooks of tests count passes
    first = Request(key="", prompt_ids=(1, 2), seed=0)
    generate(engine, [first], sampling=SamplingSpec(max_tokens=2))
    return engine


@pytest.fixture(scope="session")
def engine(trained: Engine) -> Engine:
    """`trained`, where a module has no other."""
    return trained


class Steps(list[float]):
    """The moments of a model's steps; after `most` of them it stands still."""

    most = math.inf


@pytest.fixture
def slow(engine: Engine) -> Iterator[Steps]:
    """The model takes 5 ms more per step and never ends by itself."""
    (eos,) = engine.model.eos_token_ids
    steps = Steps()

    def drag(_module: Any, _inputs: Any, logits: Any) -> Any:
        steps.append(time.monotonic())
        time.sleep(0.005)
        while len(steps) > steps.most:
            time.sleep(0.005)
        logits[..., eos] = -1e4
        return logits

    handle = engine.model.hf.get_submodule("lm_head").register_forward_hook(drag)
    yield steps
    steps.most = math.inf
    handle.remove()


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], None]:
    """Waits until something holds."""
    return wait_until
