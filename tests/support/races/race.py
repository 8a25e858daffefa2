"""Every write to the index at once, from many threads, and the invariants afterwards."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

from storage.jobs import batches
from storage.queue import pause, view
from tests.support import leasing
from tests.support.races.client_acts import Client, Memory
from tests.support.races.invariants import broken
from tests.support.races.service_acts import ApiActs, WorkerActs
from tests.support.races.world import World

#: for what is open once nothing new comes
PATIENCE_SECONDS = 120.0


@dataclass(frozen=True, kw_only=True)
class Load:
    """How much goes on at once: until the acts of every thread are made, or the time is over."""

    clients: int = 6
    workers: int = 3
    apis: int = 2
    acts: int | None = None
    seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class Raced:
    """Faults in words, and counts of acts done and refused."""

    faults: Sequence[str]
    done: Mapping[str, int]
    refused: Mapping[str, int]


def race(home: Path, database_url: str, *, seed: int, load: Load, hold_up_ms: float = 1.0) -> Raced:
    """Everything at once on an index at the newest schema."""
    with World(home, database_url, seed=seed, hold_up_ms=hold_up_ms) as world:
        memory = Memory()
        clients = [Client(world, memory, number) for number in range(load.clients)]
        clients[0].prepare()
        drains = [WorkerActs(world, number) for number in range(load.workers)]
        tidiers = [ApiActs(world, number) for number in range(load.apis)]
        _run(load, [client.act for client in clients], drains, tidiers)
        _settle(world, drains, tidiers)
        return Raced(
            faults=[*world.faults.found, *broken(world, memory)],
            done=world.faults.done,
            refused=world.faults.refused,
        )


def _run(
    load: Load,
    clients: Sequence[Callable[[], None]],
    drains: Sequence[WorkerActs],
    tidiers: Sequence[ApiActs],
) -> None:
    """Clients make their acts; workers and API processes go on until they have."""
    over = threading.Event()
    ends_at = time.monotonic() + load.seconds if load.seconds is not None else None

    def ask(act: Callable[[], None]) -> None:
        made = 0
        while (load.acts is None or made < load.acts) and (ends_at is None or time.monotonic() < ends_at):
            act()
            made += 1

    def serve(act: Callable[[], None], at_least: int) -> None:
        made = 0
        while not over.is_set() or made < at_least:
            act()
            made += 1

    asking = [threading.Thread(target=ask, args=(act,)) for act in clients]
    serving = [threading.Thread(target=serve, args=(act.act, 0)) for act in drains]
    serving += [threading.Thread(target=serve, args=(act.act, act.round_length)) for act in tidiers]
    for thread in (*asking, *serving):
        thread.start()
    for thread in asking:
        thread.join()
    over.set()
    for thread in serving:
        thread.join()


def _settle(world: World, drains: Sequence[WorkerActs], tidiers: Sequence[ApiActs]) -> None:
    """Until nothing is left to do. What is still open then, an invariant tells."""
    database = world.apis[0].database
    with database.write() as session:
        pause.end(session)
    for worker in drains:
        worker.come_back()
    world.hold_up = 0.0
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        with database.read() as session:
            slices = len(leasing.with_work(session))
        for worker in islice(cycle(drains), slices + len(drains)):
            with world.faults.guard("drain"):
                worker.drain()
        for act in (tidiers[0].reconcile, tidiers[0].advance_batches):
            with world.faults.guard(act.__name__):
                act()
        with database.read() as session:
            if not (
                any(view.open_samples(session).values())
                or leasing.with_work(session)
                or batches.unended(session)
            ):
                return
