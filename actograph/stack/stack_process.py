"""Run `actograph up` as a child of this process."""

import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Self

from actograph.contract.errors import ServiceUnavailable
from actograph.stack.launcher import launched

READY = "ready: "
#: longer than the 20 s that `up` gives its workers
STOP_SECONDS = 60.0


class StackProcess:
    """Runs `up` while the context lasts, and waits for its `ready` line. Its stderr is passed on.

    On Linux `up` gets SIGTERM when this process ends in any way.

    Raises on entry:
        ServiceUnavailable: `up` ended before it was ready; its stderr says why.
    """

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self._arguments = arguments
        self._environment = dict(environment)
        self._process: subprocess.Popen[str] | None = None
        self.url = ""

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "actograph.cli.main", "up", *self._arguments]
        self._process = subprocess.Popen(
            launched(command, signal.SIGTERM),
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )
        try:
            assert self._process.stdout is not None
            for line in self._process.stdout:
                if line.startswith(READY):
                    self.url = line.removeprefix(READY).strip()
                    return self
            raise ServiceUnavailable("the service did not start; the lines above say why")
        except BaseException:
            self.stop()
            raise

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop `up` and wait for its end; Ctrl-C kills it."""
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except (KeyboardInterrupt, subprocess.TimeoutExpired):
            # its children end with it
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
        self._process = None
