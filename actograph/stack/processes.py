"""Child processes: supervised, restarted when they die, and stopped in order."""

import logging
import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from logging.handlers import RotatingFileHandler
from pathlib import Path

from typing_extensions import override

from actograph.contract.errors import ActographError
from actograph.stack.launcher import launched

FIRST_DELAY_SECONDS = 0.5
LONGEST_DELAY_SECONDS = 30.0
MAX_DEATHS = 5
#: size at which a log is renamed to `NAME.1`
LOG_BYTES = 64 << 20
TAIL_LINES = 15
_POLL_SECONDS = 0.05


class CrashLoop(ActographError):
    """A program of the service keeps dying."""

    code = "crash_loop"

    def __init__(self, message: str, tail: str) -> None:
        super().__init__(message)
        #: last lines of the program's log
        self.tail = tail


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
        stop_seconds: float = 20.0,
    ) -> None:
        """`log`: file for its output; `stop_seconds`: time between SIGTERM and SIGKILL."""
        self.name, self.command, self.environment = name, command, environment
        self.log, self.stop_seconds = log, stop_seconds
        self.process: subprocess.Popen[str] | None = None
        self.ready = self.was_ready = False
        #: deaths since it was last ready
        self.deaths = 0
        self.restart_at: float | None = None
        self._lines: deque[str] = deque(maxlen=TAIL_LINES)
        self._reader: threading.Thread | None = None

    @property
    def pid(self) -> int | None:
        """The running process."""
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
        self._lines.clear()
        self._reader = threading.Thread(target=self._copy_output, args=[self.process], daemon=True)
        self._reader.start()

    def ended(self) -> int | None:
        """Return the exit status (negative: the signal) if the process has just ended, else None.

        Processes left in its session are killed before its pid is released.
        """
        if self.process is None:
            return None
        if os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return None
        self.kill()
        status = self.process.wait()
        if self._reader is not None:
            self._reader.join(timeout=5)
        self.process, self.ready = None, False
        return status

    def terminate(self) -> None:
        """Send SIGTERM to the process, not to its children."""
        if self.process is not None:
            os.kill(self.process.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to every process of its session."""
        if self.process is not None:
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                # not yet the leader of its group
                os.kill(self.process.pid, signal.SIGKILL)

    def tail(self) -> str:
        """Return the last lines of the log since the start."""
        return "\n".join(self._lines)

    def _copy_output(self, process: "subprocess.Popen[str]") -> None:
        """Copy the output of a process to the log until its end. Runs in a thread."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        log = _Log(self.log, maxBytes=LOG_BYTES, backupCount=1, encoding="utf-8")
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                self._lines.append(line.rstrip("\n"))
                log.emit(logging.makeLogRecord({"msg": line.rstrip("\n")}))
        log.close()


class Supervisor:
    """Restarts children that die. Call `check` often, from the thread that created the supervisor.

    On Linux the kernel kills the children when that thread ends.
    """

    def __init__(self, report: Callable[[str], None], first_delay: float = FIRST_DELAY_SECONDS) -> None:
        self._report = report
        self._first_delay = first_delay
        self.children: list[Child] = []

    def start(self, child: Child) -> Child:
        """Start a program and supervise it."""
        self.children.append(child)
        child.start()
        return child

    def check(self) -> None:
        """Restart dead children after their delay.

        Raises:
            CrashLoop: a program died repeatedly without becoming ready.
        """
        for child in self.children:
            if (status := child.ended()) is not None:
                self._died(child, status)
            elif child.restart_at is not None and time.monotonic() >= child.restart_at:
                child.start()

    def mark_ready(self, child: Child) -> None:
        """Mark a child ready and reset its deaths."""
        child.ready, child.was_ready, child.deaths = True, True, 0

    def stop(self, children: Iterable[Child], at_once: Callable[[], bool] = lambda: False) -> None:
        """Send SIGTERM and wait; send SIGKILL after the timeout, or once `at_once()` is true."""
        waiting = []
        for child in children:
            child.restart_at = None
            if child.ended() is None and child.process is not None:
                child.terminate()
                waiting.append(child)
        started = time.monotonic()
        while waiting := [child for child in waiting if child.ended() is None]:
            for child in waiting:
                if time.monotonic() - started > child.stop_seconds or at_once():
                    child.kill()
            time.sleep(_POLL_SECONDS)

    def kill_all(self) -> None:
        """Kill every child with its session, and wait for their end."""
        for child in self.children:
            child.restart_at = None
            child.kill()
        for child in self.children:
            while child.ended() is None and child.process is not None:
                time.sleep(_POLL_SECONDS)

    def _died(self, child: Child, status: int) -> None:
        name, log = child.name, child.log
        child.deaths += 1
        if child.deaths >= MAX_DEATHS:
            raise CrashLoop(
                f"{name} died {child.deaths} times in a row before it was ready, the last time with "
                f"{describe(status)}; its log: {log}",
                child.tail(),
            )
        delay = min(LONGEST_DELAY_SECONDS, self._first_delay * 2.0 ** (child.deaths - 1))
        child.restart_at = time.monotonic() + delay
        self._report(f"{name} ended with {describe(status)}; starting it again in {delay:.1f} s (log: {log})")


def describe(status: int) -> str:
    """Describe an exit status."""
    if status >= 0:
        return f"exit status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    hint = ", perhaps out of memory" if -status == signal.SIGKILL else ""
    return f"{name}{hint}"
