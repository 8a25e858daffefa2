"""The whole service as subprocesses, on a home folder of its own."""

import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from actograph.demo import MODEL_DIR
from tests.support.processes import has_ended, words_of
from tests.support.servers import s3
from tests.support.servers.s3 import S3Server

START_SECONDS = 180.0
ACTOGRAPH = [sys.executable, "-m", "actograph.cli.main"]


class Up:
    """One `actograph up`; its children are those that it ever had."""

    def __init__(self, home: Path, *arguments: str) -> None:
        self.home = home
        self._err = (home.parent / f"{home.name}.err").open("w+")
        self.process = subprocess.Popen(
            [*ACTOGRAPH, "up", f"--home={home}", "--port=0", "--threads=1", *arguments],
            stdout=subprocess.PIPE,
            stderr=self._err,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
            start_new_session=True,
            text=True,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        self.url = ""

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as stdout:
            for line in stdout:
                self._lines.put(line)
        self._lines.put("")

    def await_ready(self) -> None:
        line = self._lines.get(timeout=START_SECONDS)
        assert line.startswith("ready: http://127.0.0.1:"), f"{line!r}; {self.said()}; {self.logs()}"
        self.url = line.removeprefix("ready: ").strip()

    def said(self) -> str:
        return Path(self._err.name).read_text()

    def logs(self) -> str:
        return "\n".join(f"== {p.name}\n{p.read_text()[-3000:]}" for p in (self.home / "logs").glob("*.log"))

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def child(self, word: str) -> psutil.Process:
        """The one direct child whose command line has this word."""
        found = [c for c in psutil.Process(self.process.pid).children() if word in words_of(c)]
        assert len(found) == 1, found
        return found[0]

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(90)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._err.close()


def wait_until(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)


def all_gone(processes: list[psutil.Process]) -> bool:
    return all(has_ended(process) for process in processes)


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Callable[..., Up]]:
    """Starts services; those that a test leaves running are ended."""
    yield from _starter(tmp_path)


@pytest.fixture(scope="module")
def module_up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Up]]:
    """`up` for a service that all tests of a module share."""
    yield from _starter(tmp_path_factory.mktemp("service"))


def _starter(folder: Path) -> Iterator[Callable[..., Up]]:
    made: list[Up] = []

    def start(*arguments: str, home: Path | None = None, model: str = f"demo={MODEL_DIR}") -> Up:
        made.append(Up(home or folder / "home", f"--model={model}", *arguments))
        return made[-1]

    yield start
    for one in made:
        one.close()


@pytest.fixture
def postgres_and_s3(
    new_postgres: Callable[[], str], s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], None]:
    """Has services keep everything there; the argument is where they reach the S3 server."""

    def use(url: str) -> None:
        environment = s3.environment(url, os.environ)
        for name in [name for name in os.environ if name not in environment]:
            monkeypatch.delenv(name)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("ACTOGRAPH_DATABASE_URL", new_postgres())
        monkeypatch.setenv("ACTOGRAPH_ARTIFACT_URL", f"s3://{s3_server.new_bucket()}/lab/one")

    return use


@pytest.fixture
def wait() -> Callable[..., None]:
    return wait_until


@pytest.fixture
def gone() -> Callable[[list[psutil.Process]], bool]:
    return all_gone
