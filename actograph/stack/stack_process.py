"""`actograph up` as a child of this process: started, awaited, stopped."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from actograph.contract.errors import ServiceUnavailable

READY = "ready: "
#: `up` gives its workers 20 s and kills what is left after that
STOP_SECONDS = 60.0
_LAUNCHER = Path(__file__).with_name("launcher.py")


class StackProcess:
    """Runs `up` while the context lasts. Its remarks go to our stderr, its `ready` line is read.

    On Linux `up` is asked to end when this process dies, however it dies.

    Raises on entry:
        ServiceUnavailable: `up` ended before it was ready; it has said why.
    """

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self._arguments = arguments
        self._environment = dict(environment)
        self._process: subprocess.Popen[str] | None = None
        self.url = ""

    def __enter__(self) -> Self:
        launch = [sys.executable, "-I", "-S", str(_LAUNCHER), str(int(signal.SIGTERM)), str(os.getpid())]
        command = [sys.executable, "-m", "actograph.cli.main", "up", *self._arguments]
        self._process = subprocess.Popen(
            [*launch, *command],
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

    def wait(self) -> None:
        """Until `up` ends, or Ctrl-C."""
        assert self._process is not None
        try:
            self._process.wait()
        except KeyboardInterrupt:
            self.stop()

    def stop(self) -> None:
        """Ask `up` to end in good order and wait until it has; Ctrl-C meanwhile ends it at once."""
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except (KeyboardInterrupt, subprocess.TimeoutExpired):
            # its children die with it
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
        self._process = None
