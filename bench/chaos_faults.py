"""The faults that `bench.chaos` injects into a running `actograph up`, each at its own process.

A fault that is aimed at a worker's child first stops it (SIGSTOP), then looks up in the index which
samples it holds, then kills it: what is in its hand is known exactly, and the moment stays random.
"""

import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import redis
import sqlalchemy as sa

from actograph.contract.resources import SampleStatus
from storage.database import Database
from storage.models import SampleRow, WorkerRow


class NotMidWork(Exception):
    """The target has nothing in hand just now; try again."""


@dataclass(frozen=True, kw_only=True)
class Stack:
    """A running service, seen from outside."""

    home: Path
    #: of the API
    port: int
    #: of the `actograph up`
    process: psutil.Process
    database: Database
    lease_seconds: float

    def program(self, word: str) -> psutil.Process:
        """The service's direct child that runs `python -m WORD`, or the program WORD. Raises NotMidWork."""
        for child in self.process.children():
            try:
                line = child.cmdline()
            except psutil.Error:
                continue
            if line[1:3] == ["-m", word] or (line and Path(line[0].split()[0]).name == word):
                return child
        raise NotMidWork(f"{word} is being started")

    def leased(self) -> dict[str, list[str]]:
        """Worker id -> the samples that it holds."""
        statement = sa.select(SampleRow.worker_id, SampleRow.id).where(
            SampleRow.status == SampleStatus.LEASED, SampleRow.lease_until > time.time()
        )
        held: dict[str, list[str]] = {}
        with self.database.read() as session:
            for worker_id, sample_id in session.execute(statement):
                held.setdefault(worker_id or "", []).append(sample_id)
        return held

    def busy_child(self) -> tuple[str, psutil.Process]:
        """A worker with samples in hand, and the process that holds its model. Raises NotMidWork."""
        held = self.leased()
        with self.database.read() as session:
            rows = session.execute(sa.select(WorkerRow.id, WorkerRow.pid).where(WorkerRow.id.in_(held))).all()
        for worker_id, pid in rows:
            try:
                return worker_id, psutil.Process(pid)
            except psutil.NoSuchProcess:
                continue
        raise NotMidWork("no worker has samples in hand")


@dataclass(frozen=True, kw_only=True)
class Injected:
    """What a fault hit."""

    #: samples that may have to be run again because of it
    in_hand: list[str]
    #: samples that anybody held at that moment: recovery is over once all have ended
    waiting: list[str]
    #: Unix seconds from which recovery is counted
    at: float


def _await_stop(child: psutil.Process) -> None:
    """SIGSTOP reaches a process's threads within a moment; until then it may still commit."""
    for _ in range(200):
        if child.status() == psutil.STATUS_STOPPED:
            return
        time.sleep(0.005)
    child.resume()
    raise NotMidWork("the worker's child does not stop; it is dying")


def _stopped(stack: Stack) -> tuple[psutil.Process, list[str], list[str]]:
    """A worker's child, stopped in mid-work, what it holds, and what everybody holds."""
    worker_id, child = stack.busy_child()
    try:
        child.suspend()
        _await_stop(child)
        held = stack.leased()
        if not held.get(worker_id):
            child.resume()
            raise NotMidWork("the unit ended meanwhile")
    except psutil.NoSuchProcess:
        raise NotMidWork("the worker's child is gone") from None
    return child, held[worker_id], [sample for samples in held.values() for sample in samples]


@contextmanager
def _closed_doors() -> Iterator[None]:
    """A program that does not answer yet is no target: it is being started."""
    try:
        yield
    except (OSError, redis.RedisError) as error:
        raise NotMidWork(f"no answer: {error}") from None


def kill_child(stack: Stack) -> Injected:
    child, in_hand, waiting = _stopped(stack)
    child.kill()
    return Injected(in_hand=in_hand, waiting=waiting, at=time.time())


def kill_worker(stack: Stack) -> Injected:
    child, in_hand, waiting = _stopped(stack)
    parent = child.parent()
    if parent is None:
        raise NotMidWork("the worker is gone")
    parent.kill()  # its child dies with it
    return Injected(in_hand=in_hand, waiting=waiting, at=time.time())


def pause_child(stack: Stack) -> Injected:
    """Stop a worker past its lease, so that others take over, and let it go on in the belief it holds it."""
    child, in_hand, waiting = _stopped(stack)
    at = time.time()
    try:
        time.sleep(stack.lease_seconds * 1.5)
    finally:
        child.resume()
    return Injected(in_hand=in_hand, waiting=waiting, at=at)


def _elsewhere(stack: Stack, strike: Callable[[], object]) -> Injected:
    """A fault beside the workers, while they have samples in hand; it may not cost any of them."""
    held = stack.leased()
    if not held:
        raise NotMidWork("no worker has samples in hand")
    strike()
    waiting = [sample for samples in held.values() for sample in samples]
    return Injected(in_hand=[], waiting=waiting, at=time.time())


def kill_api(stack: Stack) -> Injected:
    api = stack.program("api")
    with _closed_doors():
        socket.create_connection(("127.0.0.1", stack.port), timeout=1.0).close()
    return _elsewhere(stack, api.kill)


def kill_broker(stack: Stack) -> Injected:
    return _elsewhere(stack, stack.program("redis-server").kill)


def restart_broker(stack: Stack) -> Injected:
    """An orderly end (SIGTERM); the supervisor starts it again."""
    return _elsewhere(stack, lambda: stack.program("redis-server").send_signal(signal.SIGTERM))


def flush_broker(stack: Stack) -> Injected:
    folder = stack.home / "redis"
    port, password = int((folder / "port").read_text()), (folder / "password").read_text().strip()
    with redis.Redis(port=port, password=password, socket_timeout=5) as client, _closed_doors():
        return _elsewhere(stack, client.flushall)


#: name -> (what it does, how often it is chosen)
FAULTS: dict[str, tuple[Callable[[Stack], Injected], int]] = {
    "kill -9 worker child": (kill_child, 5),
    "kill -9 worker": (kill_worker, 5),
    "kill -9 API": (kill_api, 3),
    "kill -9 broker": (kill_broker, 3),
    "restart broker": (restart_broker, 2),
    "FLUSHALL": (flush_broker, 4),
    "SIGSTOP past lease": (pause_child, 3),
}
