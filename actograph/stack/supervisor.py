"""Child processes that are watched, started again when they die, and ended in good order."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from actograph.contract.errors import ActographError
from actograph.stack.log_file import LogFile

FIRST_DELAY_SECONDS = 0.5
LONGEST_DELAY_SECONDS = 30.0
MAX_DEATHS = 5
TAIL_LINES = 15
_POLL_SECONDS = 0.05
_LAUNCHER = Path(__file__).with_name("launcher.py")


class CrashLoop(ActographError):
    """A program of the service keeps dying."""

    code = "crash_loop"

    def __init__(self, message: str, tail: str) -> None:
        super().__init__(message)
        #: the end of what the program wrote
        self.tail = tail


@dataclass(frozen=True, kw_only=True)
class Program:
    """Program to run and the file for its output."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    #: stdout and stderr are appended here
    log: Path
    #: a longer log is put aside
    log_max_bytes: int = 64 << 20
    #: time between SIGTERM and SIGKILL
    stop_seconds: float = 20.0


class Child:
    """One program and the process that runs it now, if any."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.process: subprocess.Popen[bytes] | None = None
        #: seconds since the epoch, as the workers' rows count
        self.started_at = 0.0
        self.ready = False
        self.was_ready = False
        #: deaths since it was last ready
        self.deaths = 0
        self.restart_at: float | None = None
        self.log = LogFile(program.log, program.log_max_bytes)

    @property
    def pid(self) -> int | None:
        """The running process."""
        return self.process.pid if self.process is not None else None

    def start(self) -> None:
        """Run the program in a session of its own, so that a terminal's Ctrl-C does not reach it."""
        program = self.program
        launch = [sys.executable, "-I", "-S", str(_LAUNCHER), str(int(signal.SIGKILL)), str(os.getpid())]
        with self.log.open() as log:
            self.process = subprocess.Popen(
                [*launch, *program.command],
                env=dict(program.environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.started_at, self.ready, self.restart_at = time.time(), False, None

    def ended(self) -> int | None:
        """The exit status of a process that has just ended (negative: the signal); else None.

        What the process left running in its session is killed before its pid is given free.
        """
        if self.process is None:
            return None
        if os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return None
        self.kill()
        status = self.process.wait()
        self.process, self.ready = None, False
        return status

    def terminate(self) -> None:
        """SIGTERM to the process alone: what it started is its own to end."""
        if self.process is not None:
            os.kill(self.process.pid, signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL to the process and everything in its session."""
        if self.process is not None:
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                # forked, but not yet the leader of its group
                os.kill(self.process.pid, signal.SIGKILL)

    def tail(self) -> str:
        """The last lines that the process wrote since it was started."""
        return self.log.tail(TAIL_LINES)


class Supervisor:
    """Keeps children alive. Call `check` often, always from the thread that made the object.

    On Linux the children are killed by the kernel when that thread ends, however it ends.
    """

    def __init__(
        self,
        report: Callable[[str], None],
        *,
        first_delay: float = FIRST_DELAY_SECONDS,
        longest_delay: float = LONGEST_DELAY_SECONDS,
        max_deaths: int = MAX_DEATHS,
    ) -> None:
        self._report = report
        self._first_delay = first_delay
        self._longest_delay = longest_delay
        self._max_deaths = max_deaths
        self.children: list[Child] = []

    def start(self, program: Program) -> Child:
        """Run a program from now on."""
        child = Child(program)
        self.children.append(child)
        child.start()
        return child

    def check(self) -> None:
        """Start again what died and has waited long enough; put logs aside that have grown large.

        Raises:
            CrashLoop: a program died several times without being ready in between.
        """
        for child in self.children:
            try:
                child.log.put_aside()
            except OSError as error:
                self._report(f"{child.program.name}'s log cannot be put aside and goes on growing: {error}")
            if (status := child.ended()) is not None:
                self._died(child, status)
            elif child.restart_at is not None and time.monotonic() >= child.restart_at:
                child.start()

    def mark_ready(self, child: Child) -> None:
        """The child does its work: its earlier deaths are forgotten."""
        child.ready, child.was_ready, child.deaths = True, True, 0

    def stop(self, children: Iterable[Child], at_once: Callable[[], bool] = lambda: False) -> None:
        """SIGTERM, wait for the end, SIGKILL what does not end in time or when `at_once` says so."""
        waiting = []
        for child in children:
            child.restart_at = None
            if child.ended() is None and child.process is not None:
                child.terminate()
                waiting.append(child)
        started, given_up = time.monotonic(), set[Child]()
        while waiting := [child for child in waiting if child.ended() is None]:
            waited = time.monotonic() - started
            for child in waiting:
                late = waited > child.program.stop_seconds
                if late and child not in given_up:
                    given_up.add(child)
                    self._report(f"{child.program.name} did not end within {waited:.0f} s and is killed")
                if late or at_once():
                    child.kill()
            time.sleep(_POLL_SECONDS)

    def kill_all(self) -> None:
        """SIGKILL to every child and what it started; returns when they are gone."""
        for child in self.children:
            child.restart_at = None
            child.kill()
        for child in self.children:
            while child.ended() is None and child.process is not None:
                time.sleep(_POLL_SECONDS)

    def _died(self, child: Child, status: int) -> None:
        name, log = child.program.name, child.program.log
        child.deaths += 1
        if child.deaths >= self._max_deaths:
            raise CrashLoop(
                f"{name} died {child.deaths} times in a row without being ready, the last time with "
                f"{describe(status)}; its log: {log}",
                child.tail(),
            )
        # a child that was ready once gets its first restart at the first delay
        delay = min(self._longest_delay, self._first_delay * 2.0 ** (child.deaths - 1))
        child.restart_at = time.monotonic() + delay
        self._report(f"{name} ended with {describe(status)}; starting it again in {delay:.1f} s (log: {log})")


def describe(status: int) -> str:
    """An exit status in words."""
    if status >= 0:
        return f"exit status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    hint = ", perhaps for want of memory" if -status == signal.SIGKILL else ""
    return f"{name}{hint}"
