"""Every write to the index at once, from many threads, and whether all of it holds together afterwards.

    python -m bench.index_races [--seconds 120] [--seed 1] [--sqlite | --postgres URL]

Clients submit, cancel, delete, retry, rescore, pause; workers claim, fail, die and commit; two API processes
reconcile, expire, deliver and sweep: the service's own routes, drain and reconciler, on the same few jobs
(bench/races). What clients and workers do comes of the seed; how it interleaves does not. The exit status is
1 where the database refused anything (a deadlock, a broken constraint, a serialization failure), where
anything raised what no client is told, or where an invariant does not hold in the end. Without a choice,
SQLite and a Postgres of its own are both tried.
"""

import argparse
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import cycle, islice
from pathlib import Path

import sqlalchemy as sa

from storage import migrate
from storage.index.database import Database
from storage.jobs import batches, webhooks
from storage.queue import job_queue, pause
from tests.support.races.client_acts import Client, Memory
from tests.support.races.invariants import broken
from tests.support.races.service_acts import ApiActs, WorkerActs
from tests.support.races.world import World
from tests.support.servers.postgres import PostgresServer

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
    """What went wrong, in words; of each act, how often it was done, and how often the service refused it."""

    faults: Sequence[str]
    done: Mapping[str, int]
    refused: Mapping[str, int]


class _Receiver(BaseHTTPRequestHandler):
    """Takes webhooks, and refuses every fourth."""

    taken = 0

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        type(self).taken += 1
        self.send_response(500 if self.taken % 4 == 0 else 204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


@contextmanager
def _receiver() -> Iterator[int]:
    """The port of a receiver of webhooks."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Receiver) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def race(home: Path, database_url: str, *, seed: int, load: Load, hold_up_ms: float = 1.0) -> Raced:
    """Everything at once on an index at the newest schema."""
    with _receiver() as port:
        world = World(home, database_url, seed=seed, hold_up_ms=hold_up_ms, webhook_port=port)
        with world:
            memory = Memory()
            clients = [
                Client(world, memory, number, webhook_url=f"http://127.0.0.1:{port}/")
                for number in range(load.clients)
            ]
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
            slices = len(job_queue.claimable(session))
        for worker in islice(cycle(drains), slices + len(drains)):
            with world.faults.guard("drain"):
                worker.drain()
        for act in (tidiers[0].reconcile, tidiers[0].advance_batches, tidiers[0].deliver_webhooks):
            with world.faults.guard(act.__name__):
                act()
        with database.read() as session:
            if not (
                any(job_queue.open_samples(session).values())
                or job_queue.claimable(session)
                or job_queue.unended(session)
                or batches.unended(session)
                or webhooks.is_any_due(session)
            ):
                return


def _on_sqlite(arguments: argparse.Namespace, load: Load) -> Raced:
    with tempfile.TemporaryDirectory(prefix="actograph-races-") as home:
        url = f"sqlite:///{home}/index.db"
        return _migrated(Path(home), url, arguments, load)


def _on_postgres(arguments: argparse.Namespace, load: Load) -> Raced:
    with tempfile.TemporaryDirectory(prefix="actograph-races-") as home:
        if arguments.postgres:
            return _migrated(Path(home), arguments.postgres, arguments, load)
        server = PostgresServer()
        server.create()
        try:
            return _migrated(Path(home), server.url, arguments, load)
        finally:
            server.remove()


def _migrated(home: Path, url: str, arguments: argparse.Namespace, load: Load) -> Raced:
    database = Database(url)
    migrate.upgrade(database)
    database.close()
    return race(home, url, seed=arguments.seed, load=load, hold_up_ms=arguments.hold_up_ms)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=120.0, help="how long clients go on")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--hold-up-ms", type=float, default=4.0, help="a statement waits up to so long")
    parser.add_argument("--sqlite", action="store_true", help="a SQLite file alone")
    parser.add_argument("--only-postgres", action="store_true")
    parser.add_argument("--postgres", default="", metavar="URL", help="this empty database alone")
    arguments = parser.parse_args()
    # a row that was gone is a warning of SQLAlchemy's, and a fault of ours
    warnings.simplefilter("error", sa.exc.SAWarning)
    load = Load(clients=arguments.clients, workers=arguments.workers, seconds=arguments.seconds)
    raced: dict[str, Raced] = {}
    if not arguments.postgres and not arguments.only_postgres:
        raced["sqlite"] = _on_sqlite(arguments, load)
    if not arguments.sqlite:
        raced["postgres"] = _on_postgres(arguments, load)
    for kind, found in raced.items():
        for act in sorted({*found.done, *found.refused}):
            print(f"{kind}: {act}: {found.done[act]} done, {found.refused[act]} refused")
        for what in found.faults:
            print(f"{kind}: FAULT: {what}")
        print(f"{kind}: {len(found.faults)} fault(s)")
    return 1 if any(found.faults for found in raced.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
