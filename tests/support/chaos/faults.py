"""The faults that `bench.chaos` injects into a running `actograph up`, each at its own process.

A fault that is aimed at a worker first stops it (SIGSTOP), then looks up in the index which
samples it holds, then kills it: what is in its hand is known exactly, and the moment stays random. A
fault of the store or of the database may cost any unit in hand while it lasts, and no other.
"""

import random
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil
import redis

from tests.support.broker import broker_of
from tests.support.chaos import changes
from tests.support.chaos.stack import Injected, NotMidWork, Stack, Strike, engine_of
from tests.support.servers.faulty_proxy import Mode

#: how long what is away stays away
AWAY_SECONDS = (1.0, 4.0)
#: so long it stays away beyond that where nobody has met it yet
HIT_SECONDS = 20.0
CLOCK_SHIFTS = (60.0, -60.0)


def _await_stop(process: psutil.Process) -> None:
    """SIGSTOP reaches a process's threads within a moment; until then it may still commit."""
    for _ in range(200):
        if process.status() == psutil.STATUS_STOPPED:
            return
        time.sleep(0.005)
    process.resume()
    raise NotMidWork("the worker does not stop; it is dying")


def _stopped(stack: Stack) -> tuple[psutil.Process, list[str], list[str]]:
    """A worker, stopped in mid-work, what it holds, and what everybody holds."""
    worker_id, worker = stack.busy_worker()
    try:
        worker.suspend()
        _await_stop(worker)
        held = stack.leased()
        if not held.get(worker_id):
            worker.resume()
            raise NotMidWork("the unit ended meanwhile")
    except psutil.NoSuchProcess:
        raise NotMidWork("the worker is gone") from None
    return worker, held[worker_id], stack.held()


@contextmanager
def _closed_doors() -> Iterator[None]:
    """A program that does not answer yet is no target: it is being started."""
    try:
        yield
    except (OSError, redis.RedisError) as error:
        raise NotMidWork(f"no answer: {error}") from None


def kill_engine(stack: Stack) -> Injected:
    """The engine's process alone; its host starts another one."""
    worker, in_hand, waiting = _stopped(stack)
    try:
        engine_of(worker).kill()
    finally:
        worker.resume()
    return Injected(in_hand=in_hand, waiting=waiting, at=time.time())


def kill_worker(stack: Stack) -> Injected:
    worker, in_hand, waiting = _stopped(stack)
    worker.kill()  # its engine ends with it
    return Injected(in_hand=in_hand, waiting=waiting, at=time.time())


def pause_worker(stack: Stack) -> Injected:
    """Stop a worker past its lease, so that others take over, and let it go on in the belief it holds it."""
    worker, in_hand, waiting = _stopped(stack)
    at = time.time()
    try:
        time.sleep(stack.lease_seconds * 1.5)
    finally:
        worker.resume()
    return Injected(in_hand=in_hand, waiting=waiting, at=at)


def pause_engine(stack: Stack) -> Injected:
    """Stop an engine for longer than a lease; its host renews the leases, and nothing is lost."""
    waiting = stack.held()
    _, worker = stack.busy_worker()
    try:
        engine = engine_of(worker)
        engine.suspend()
    except psutil.NoSuchProcess:
        raise NotMidWork("the engine is gone") from None
    at = time.time()
    try:
        time.sleep(stack.lease_seconds * 1.5)
    finally:
        engine.resume()
    return Injected(in_hand=[], waiting=waiting, at=at)


def _elsewhere(stack: Stack, strike: Callable[[], object]) -> Injected:
    """A fault beside the workers, while they have samples in hand; it may not cost any of them."""
    waiting = stack.held()
    if not waiting:
        raise NotMidWork("no worker has samples in hand")
    strike()
    return Injected(in_hand=[], waiting=waiting, at=time.time())


def kill_api(stack: Stack) -> Injected:
    api = stack.program("api")
    with _closed_doors():
        socket.create_connection(("127.0.0.1", stack.port), timeout=1.0).close()
    return _elsewhere(stack, api.kill)


def kill_broker(stack: Stack) -> Injected:
    return _elsewhere(stack, stack.broker().kill)


def restart_broker(stack: Stack) -> Injected:
    """An orderly end (SIGTERM); the supervisor starts it again."""
    return _elsewhere(stack, lambda: stack.broker().send_signal(signal.SIGTERM))


def flush_broker(stack: Stack) -> Injected:
    port, password = broker_of(stack.home)
    with redis.Redis(port=port, password=password, socket_timeout=5) as client, _closed_doors():
        return _elsewhere(stack, client.flushall)


def _outage(
    stack: Stack,
    begin: Callable[[], object],
    end: Callable[[], object],
    was_met: Callable[[], bool] = lambda: True,
) -> Injected:
    """Something is away for a while, from a moment at which samples are in hand, until `was_met`."""
    before = stack.held()
    if not before:
        raise NotMidWork("no worker has samples in hand")
    begin()
    at = time.time()
    try:
        time.sleep(random.uniform(*AWAY_SECONDS))
        deadline = time.monotonic() + HIT_SECONDS
        while not was_met() and time.monotonic() < deadline:
            time.sleep(0.02)
    finally:
        end()
    if not was_met():
        raise NotMidWork("nobody met the fault while it lasted")
    after = stack.held()
    return Injected(in_hand=[*before, *after], waiting=before, at=at)


def restart_postgres(stack: Stack) -> Injected:
    """SIGINT: it ends every transaction in good order."""
    server = stack.postgres
    assert server is not None
    return _outage(stack, lambda: server.stop(signal.SIGINT), server.start)


def kill_postgres(stack: Stack) -> Injected:
    """SIGKILL to the postmaster and its children; the start recovers from the log."""
    server = stack.postgres
    assert server is not None
    return _outage(stack, server.kill, server.start)


def fill_disk(stack: Stack) -> Injected:
    """Every write of a session's file fails with ENOSPC; at least one does."""
    hit = stack.full_file.with_name(f"{stack.full_file.name}.hit")
    hit.unlink(missing_ok=True)
    return _outage(stack, stack.full_file.touch, stack.full_file.unlink, hit.exists)


def shift_clock(stack: Stack) -> Injected:
    """The clock of one worker jumps a minute ahead or back, and stays there until the next such fault."""
    now = float(stack.clock_file.read_text() or 0)
    new = random.choice([shift for shift in CLOCK_SHIFTS if shift != now])
    return _elsewhere(stack, lambda: stack.clock_file.write_text(str(new)))


def _store_fault(mode: Mode) -> Strike:
    def strike(stack: Stack) -> Injected:
        proxy = stack.proxy
        assert proxy is not None

        def set_mode(value: Mode) -> None:
            proxy.mode = value

        met = False

        def was_met() -> bool:
            nonlocal met
            met = met or any(request.mode == mode for request in proxy.take_requests())
            return met

        proxy.take_requests()  # those of before
        return _outage(stack, lambda: set_mode(mode), lambda: set_mode("pass"), was_met)

    return strike


#: name -> (what it does, how often it is chosen)
EVERYWHERE: dict[str, tuple[Strike, int]] = {
    "kill -9 engine": (kill_engine, 5),
    "kill -9 worker": (kill_worker, 5),
    "kill -9 API": (kill_api, 3),
    "kill -9 broker": (kill_broker, 3),
    "restart broker": (restart_broker, 2),
    "FLUSHALL": (flush_broker, 4),
    "SIGSTOP worker past lease": (pause_worker, 3),
    "SIGSTOP engine past lease": (pause_engine, 2),
    "disk full": (fill_disk, 3),
    "clock jumps": (shift_clock, 2),
    **changes.CHANGES,
}
POSTGRES_S3: dict[str, tuple[Strike, int]] = {
    "restart Postgres": (restart_postgres, 3),
    "kill -9 Postgres": (kill_postgres, 3),
    "S3 answers 503": (_store_fault("unavailable"), 3),
    "S3 hangs up": (_store_fault("drop"), 2),
    "S3 breaks off": (_store_fault("cut"), 2),
    "S3 is slow": (_store_fault("slow"), 1),
}
#: of each stack
FAULTS = {"sqlite-files": EVERYWHERE, "postgres-s3": EVERYWHERE | POSTGRES_S3}
#: the longest time to recovery that is promised, in seconds, beside the lease where that is waited for
MARKS: dict[str, Callable[[float], float]] = {
    "kill -9 engine": lambda lease: lease + 5,
    "kill -9 worker": lambda lease: lease + 5,
    "FLUSHALL": lambda lease: 15,
}
