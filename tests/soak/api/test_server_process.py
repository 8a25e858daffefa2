"""`python -m api` as a process: signals with open streams, memory."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from actograph.settings import Settings
from actograph.stack.ports import free_port
from tests.support.processes import words_of

pytestmark = pytest.mark.integration

REPO = Path(__file__).resolve().parents[3]
SPEC = {"kind": "capture", "model": "demo", "inputs": [{"prompt": "x"}]}


def environment(settings: Settings, **more: str) -> dict[str, str]:
    own = {
        "ACTOGRAPH_HOME": str(settings.home),
        "ACTOGRAPH_DATABASE_URL": settings.database_url,
        "ACTOGRAPH_BROKER_URL": settings.broker_url,
        "ACTOGRAPH_MODEL": settings.model,
        **more,
    }
    return {k: v for k, v in os.environ.items() if not k.startswith("ACTOGRAPH_")} | own


Run = Callable[..., tuple[subprocess.Popen[str], str]]


@pytest.fixture
def run(settings: Settings) -> Iterator[Run]:
    """Starts the service as a process; returns it with its URL once it answers."""
    started: list[subprocess.Popen[str]] = []

    def start(**more: str) -> tuple[subprocess.Popen[str], str]:
        port = free_port("127.0.0.1")
        process = subprocess.Popen(
            [sys.executable, "-m", "api"],
            env=environment(settings, ACTOGRAPH_PORT=str(port), **more),
            cwd=REPO,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        url = f"http://127.0.0.1:{port}"
        deadline = time.monotonic() + 240
        while True:
            try:
                httpx.get(f"{url}/livez", trust_env=False)
                return process, url
            except httpx.TransportError:
                if process.poll() is not None or time.monotonic() > deadline:
                    process.kill()
                    raise AssertionError(process.communicate()[1]) from None
                time.sleep(0.02)

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_time_although_streams_are_open(run: Run, sign: signal.Signals) -> None:
    process, url = run()
    job = httpx.post(f"{url}/v1/jobs", json=SPEC, trust_env=False).json()
    received: list[str] = []

    def follow() -> None:
        with httpx.stream("GET", f"{url}/v1/jobs/{job['id']}/events", trust_env=False, timeout=60) as stream:
            received.extend(stream.iter_text())
        received.append("<ended>")

    threads = [threading.Thread(target=follow) for _ in range(5)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 120
    while "".join(received).count("event: job.queued") < 5:  # one for each stream
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(sign)
    status = process.wait(timeout=60)
    for thread in threads:
        thread.join(timeout=30)
    assert received.count("<ended>") == 5, "every stream ended in good order"
    assert status in (0, -sign)


def test_a_large_upload_is_not_held_in_memory(run: Run, tmp_path: Path) -> None:
    process, url = run()
    status = Path(f"/proc/{process.pid}/status")

    def peak() -> int:
        (line,) = [part for part in status.read_text().splitlines() if part.startswith("VmHWM")]
        return int(line.split()[1]) * 1024

    size = 128 << 20
    path = tmp_path / "large"
    with path.open("wb") as out:
        out.truncate(size)
    before = peak()
    with path.open("rb") as stream:
        answer = httpx.post(f"{url}/v1/files", files={"file": stream}, trust_env=False, timeout=60)
    assert answer.json()["bytes"] == size
    assert peak() - before < size // 4


def serving(process: subprocess.Popen[str]) -> list[psutil.Process]:
    """The processes that one which runs several has started."""
    return [p for p in psutil.Process(process.pid).children() if "spawn_main" in " ".join(words_of(p))]


def test_several_processes_answer_as_one(run: Run) -> None:
    process, url = run(ACTOGRAPH_API_PROCESSES="3")
    # the address was not open before all of them could serve
    assert len(serving(process)) == 3

    def submit(_: int) -> str:
        key = {"Idempotency-Key": "the same"}
        return str(httpx.post(f"{url}/v1/jobs", json=SPEC, headers=key, trust_env=False).json()["id"])

    # each on a connection of its own
    assert len({submit(n) for n in range(12)}) == 1
    assert len(httpx.get(f"{url}/v1/jobs", trust_env=False).json()["data"]) == 1
    content = b"{}\n" * 1000
    made = httpx.post(f"{url}/v1/files", files={"file": ("rows.jsonl", content)}, trust_env=False).json()
    for _ in range(6):
        assert httpx.get(f"{url}/v1/files/{made['id']}/content", trust_env=False).content == content
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 0


def test_they_end_with_the_process_that_started_them(run: Run) -> None:
    process, _ = run(ACTOGRAPH_API_PROCESSES="2")
    several = serving(process)
    process.kill()
    assert len(psutil.wait_procs(several, timeout=60)[0]) == 2
