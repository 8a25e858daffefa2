"""Child processes: started, restarted when they die, and stopped."""

import logging
import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from logging.handlers import RotatingFileHandler
from pathlib import Path

from typing_extensions import override

from actograph.contract.errors import ServiceUnavailable
from actograph.stack.launcher import launched

FIRST_DELAY_SECONDS = 0.5
LONGEST_DELAY_SECONDS = 30.0
MAX_DEATHS = 5
#: time between SIGTERM and SIGKILL
STOP_SECONDS = 20.0
#: size at which a log is renamed to `NAME.1`
LOG_BYTES = 64 << 20
_POLL_SECONDS = 0.05


class _Log(RotatingFileHandler):
    """A log file and the previous one (`NAME.1`)."""

    @override
    def handleError(self, record: logging.LogRecord) -> None:
        """Drop lines that a full disk does not take."""


class Child:
    """A program of the service and its current process, if any."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        is_ready: Callable[[int], bool] = lambda pid: False,
    ) -> None:
        """`log`: file for its output; `is_ready`: whether the process of this pid does its work by now."""
        self.name, self.command, self.environment, self.log = name, command, environment, log
        self.is_ready = is_ready
        self.process: subprocess.Popen[str] | None = None
        self.ready = self.was_ready = False
        #: deaths since it was last ready
        self.deaths = 0
        self.restart_at: float | None = None
        #: last lines of its output since the start
        self.tail: deque[str] = deque(maxlen=15)
        self._reader: threading.Thread | None = None

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process is not None else None

    def start(self) -> None:
        """Start the program in its own session, out of reach of the terminal's Ctrl-C."""
        self.process = subprocess.Popen(
            launched(self.command, signal.SIGKILL),
            env=dict(self.environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
        self.ready, self.restart_at = False, None
        self.tail.clear()
        self._reader = threading.Thread(target=self._copy_output, args=[self.process], daemon=True)
        self._reader.start()

    def ended(self) -> int | None:
        """Return the exit status (negative: the signal) if the process has just ended, else None.

        Processes left in its session are killed.
        """
        if self.process is None or (status := self.process.poll()) is None:
            return None
        self.kill()
        if self._reader is not None:
            self._reader.join(timeout=5)
        self.process, self.ready = None, False
        return status

    def kill(self) -> None:
        """Send SIGKILL to every process of its session."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def _copy_output(self, process: "subprocess.Popen[str]") -> None:
        """Copy the output of a process to the log until its end. Runs in a thread."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        log = _Log(self.log, maxBytes=LOG_BYTES, backupCount=1, encoding="utf-8")
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                self.tail.append(line.rstrip("\n"))
                log.emit(logging.makeLogRecord({"msg": line.rstrip("\n")}))
        log.close()


class Supervisor:
    """Restarts children that die. Call `check` often, from the thread that created the supervisor.

    On Linux the kernel kills the children when that thread ends.
    """

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report
        self.children: list[Child] = []

    def start(self, child: Child) -> Child:
        """Start a program and supervise it."""
        self.children.append(child)
        child.start()
        return child

    def check(self) -> bool:
        """Restart dead children after their delay. Returns whether all children are ready.

        Raises:
            ServiceUnavailable: a program refuses to run, or died repeatedly without becoming ready.
        """
        for child in self.children:
            if (status := child.ended()) is not None:
                self._died(child, status)
            elif child.restart_at is not None and time.monotonic() >= child.restart_at:
                child.start()
            elif child.pid is not None and not child.ready and child.is_ready(child.pid):
                if child.was_ready:
                    self._report(f"{child.name} is ready again")
                child.ready, child.was_ready, child.deaths = True, True, 0
        return all(child.ready for child in self.children)

    def stop(self, children: Iterable[Child], at_once: Callable[[], bool] = lambda: False) -> None:
        """Send SIGTERM and wait; send SIGKILL after `STOP_SECONDS`, or once `at_once()` is true."""
        waiting = list(children)
        for child in waiting:
            child.restart_at = None
            if child.process is not None:
                # to the process alone: it stops its own children
                child.process.terminate()
        kill_at = time.monotonic() + STOP_SECONDS
        while waiting := [child for child in waiting if child.ended() is None and child.process is not None]:
            if time.monotonic() > kill_at or at_once():
                for child in waiting:
                    child.kill()
            time.sleep(_POLL_SECONDS)

    def kill_all(self) -> None:
        """Kill every child with its session, and wait for their end."""
        self.stop(self.children, lambda: True)

    def _died(self, child: Child, status: int) -> None:
        child.deaths += 1
        name = f"exit status {status}" if status >= 0 else signal.Signals(-status).name
        name += ", perhaps out of memory" if status == -signal.SIGKILL else ""
        if (status == 1 and not child.was_ready) or child.deaths >= MAX_DEATHS:
            *lines, last = child.tail or [f"it ended with {name}"]
            for line in lines:
                self._report(line)
            tries = f" {child.deaths} times" if child.deaths > 1 else ""
            raise ServiceUnavailable(f"{child.name} could not start{tries}: {last}; its log: {child.log}")
        delay = min(LONGEST_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2.0 ** (child.deaths - 1))
        child.restart_at = time.monotonic() + delay
        self._report(f"{child.name} ended with {name}; starting it again in {delay:.1f} s (log: {child.log})")
