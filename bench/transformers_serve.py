"""transformers' own OpenAI-compatible server, which a user of these libraries has at hand already."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil

from actograph.stack.ports import free_port

START_SECONDS = 180.0
_PROGRAM = "from transformers.cli.transformers import main; main()"


@contextmanager
def serving(model: Path, log: Path, *, batches: bool) -> Iterator[tuple[str, psutil.Process]]:
    """The server's URL and process, while the context lasts.

    Args:
        batches: whether requests that come together run as one batch (`--continuous-batching`).

    Raises:
        SystemExit: it did not start; the log says why.
    """
    port = free_port("127.0.0.1")
    options = ["--host", "127.0.0.1", "--port", str(port), "--device", "cpu", "--log-level", "error"]
    options += ["--continuous-batching"] if batches else []
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, "serve", str(model), *options], stdout=output, stderr=output
        )
        url = f"http://127.0.0.1:{port}"
        try:
            _await(url, process, log)
            yield url, psutil.Process(process.pid)
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _await(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"transformers serve did not start: {log.read_text()[-1000:]}")
        try:
            if httpx.get(f"{url}/health", trust_env=False).is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
