"""Several API processes behind one address, watched by the one that `python -m api` started.

The address is bound once and shared: the kernel gives each connection to a process that waits for one. It
is opened when every process can serve. One that dies is replaced while the others go on; all state that
requests share is in the index, so that it does not matter which process answers.
"""

import logging
import multiprocessing
import os
import signal
import socket
import threading
import time
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from tempfile import TemporaryDirectory
from types import FrameType

from actograph.settings import Settings
from api.routes.service.metrics import FOLDER_VARIABLE
from api.serving import GRACE_SECONDS, serve, server_config, set_up_logging

log = logging.getLogger(__name__)

FIRST_DELAY_SECONDS = 0.5
LONGEST_DELAY_SECONDS = 30.0
#: a process that dies so often without having served is not tried again
MAX_DEATHS = 5
#: what a process may take beyond the grace of its requests
STOP_SECONDS = GRACE_SECONDS + 2.0
_LOOK_SECONDS = 0.2
_CAN_SERVE, _GO = "can serve", "go"


class _Member:
    """One place among the processes, and the process that holds it now."""

    def __init__(self, number: int, shared: socket.socket) -> None:
        self._number = number
        self._shared = shared
        self._process: SpawnProcess | None = None
        self.line: Connection | None = None
        self.can_serve = False
        self.serves = False
        self.deaths = 0
        self.restart_at = 0.0

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.line, theirs = context.Pipe()
        self._process = context.Process(
            target=_run_member, args=(self._shared, theirs), name=f"api-{self._number}"
        )
        self._process.start()
        theirs.close()
        self.can_serve = self.serves = False

    def listen(self) -> None:
        """Note that the process can serve, where it has just said so."""
        if self.line is not None and not self.can_serve and self.line.poll():
            try:
                self.can_serve = self.line.recv() == _CAN_SERVE
            except EOFError:
                self.can_serve = False

    def let_go(self) -> None:
        """The process may take connections."""
        if self.line is not None and self.can_serve and not self.serves:
            try:
                self.line.send(_GO)
            except OSError:
                return  # it has just died
            self.serves, self.deaths = True, 0

    def died(self) -> int | None:
        """The exit status of a process that has just ended; else None."""
        if self._process is None or self._process.exitcode is None:
            return None
        status = self._process.exitcode
        self._process.close()
        if self.line is not None:
            self.line.close()
        self._process = self.line = None
        self.can_serve = self.serves = False
        return status

    def terminate(self) -> None:
        if self._process is not None:
            self._process.terminate()
            if self.line is not None and not self.serves:
                self.line.close()  # it waits for our word
                self.line = None

    def end(self, deadline: float) -> None:
        """Wait for the process until then, and kill it after that."""
        if self._process is None:
            return
        self._process.join(max(0.0, deadline - time.monotonic()))
        if self._process.exitcode is None:
            log.warning("%s did not end in time and is killed", self._process.name)
            self._process.kill()
            self._process.join()


class ApiProcesses:
    """Runs `settings.api_processes` of them until a signal comes."""

    def __init__(self, settings: Settings) -> None:
        self._shared = server_config(settings).bind_socket()
        self._members = [_Member(number, self._shared) for number in range(1, settings.api_processes + 1)]
        self._signals = 0

    def run(self) -> int:
        """The exit status: 1 where the processes cannot be started, or one keeps dying."""
        with TemporaryDirectory(prefix="actograph-metrics-") as folder:
            # read by prometheus_client when a process imports it
            os.environ[FOLDER_VARIABLE] = folder
            return self._run()

    def _run(self) -> int:
        for sign in (signal.SIGTERM, signal.SIGINT):
            signal.signal(sign, self._asked)
        for member in self._members:
            member.start()
        announced = False
        try:
            while not self._signals:
                self._look()
                if not announced and all(member.can_serve for member in self._members):
                    announced = True
                if announced:
                    for member in self._members:
                        member.let_go()
                if not self._replace_dead(announced):
                    return 1
        finally:
            self._stop()
        return 0

    def _asked(self, _sign: int, _frame: FrameType | None) -> None:
        self._signals += 1

    def _look(self) -> None:
        """Wait a little for what happens."""
        lines = [m.line for m in self._members if m.line is not None and not m.can_serve]
        if lines:
            wait(lines, _LOOK_SECONDS)
        else:
            time.sleep(_LOOK_SECONDS)
        for member in self._members:
            member.listen()

    def _replace_dead(self, announced: bool) -> bool:
        """Start again what died; False where that is in vain."""
        for member in self._members:
            status = member.died()
            if status is not None:
                member.deaths += 1
                if not announced or member.deaths >= MAX_DEATHS:
                    log.error("an API process ended with status %s before it could serve", status)
                    return False
                delay = min(LONGEST_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2.0 ** (member.deaths - 1))
                member.restart_at = time.monotonic() + delay
                log.warning(
                    "an API process ended with status %s; another one starts in %.1f s", status, delay
                )
            elif member.pid is None and time.monotonic() >= member.restart_at:
                member.start()
        return True

    def _stop(self) -> None:
        self._shared.close()
        for member in self._members:
            member.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        for member in self._members:
            member.end(deadline)


def _run_member(shared: socket.socket, line: Connection) -> None:
    """What each process does."""
    settings = Settings()
    set_up_logging(settings)
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()

    def wait_for_go() -> None:
        line.send(_CAN_SERVE)
        line.recv()

    raise SystemExit(serve(settings, shared=shared, before_first=wait_for_go))


def _end_with_parent() -> None:
    """Processes without the one that watches them would hold the address for good."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)
