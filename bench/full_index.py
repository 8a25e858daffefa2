"""Times of requests in a full index, beside a small one.

    python -m bench.full_index --json bench/results/full-index-sqlite.json
    python -m bench.full_index --postgres --json bench/results/full-index-postgres.json

Makes two indexes, of 10,000 sessions and 100 jobs and of 1,000,000 sessions and 10,000 jobs, and starts the
API on each. Every round asks both for everything in a random order, the small one and the full one in turn:
lists, filters, results and deletions over HTTP, claims through the module that workers use. Reported are the
medians and their ratio.
"""

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import sqlalchemy as sa

from bench.marks import Mark, print_marks, write_result
from bench.session_listing import served
from storage import migrate
from storage.index.database import Database
from storage.queue import leases
from storage.tables.models import JobRow, SessionRow
from tests.support import leasing
from tests.support.index_rows import Shape, fill
from tests.support.servers.postgres import PostgresServer

SESSIONS = "/v1/activations/sessions"
#: times as long in the full index as in the small one, at most; what takes less than this may take longer
AT_MOST, FLOOR_MS = 2.0, 2.0


@dataclass(frozen=True, kw_only=True)
class Index:
    """An index and the API that serves it."""

    database: Database
    client: httpx.Client
    ended: list[str]
    queued: list[str]
    middle: str

    def get(self, path: str, **params: str | int) -> None:
        self.client.get(path, params=params).raise_for_status()

    def delete(self, path: str) -> None:
        self.client.delete(path).raise_for_status()

    def claim(self) -> None:
        """Claim a unit of a queued job and give it back."""
        with self.database.write() as session:
            job_id = random.choice(self.queued)
            claimed = leasing.claim(session, job_id, worker_id="wrk_bench", count=16)
            assert claimed
            leases.give_back(session, claimed)

    def delete_session(self) -> None:
        """Delete the first session of a job that has ended."""
        with self.database.read() as session:
            statement = sa.select(SessionRow.id).where(SessionRow.job_id == self.ended.pop())
            found = session.scalars(statement.limit(1)).one()
        self.delete(f"{SESSIONS}/{found}")


CASES: dict[str, Callable[[Index], None]] = {
    "list sessions": lambda index: index.get(SESSIONS),
    "list sessions, middle": lambda index: index.get(SESSIONS, after=index.middle),
    "filter by job": lambda index: index.get(SESSIONS, job_id=index.ended[0]),
    "filter by tag of all": lambda index: index.get(SESSIONS, tag="all", after=index.middle),
    "filter by rare tag": lambda index: index.get(SESSIONS, tag="rare"),
    "filter by correct": lambda index: index.get(SESSIONS, correct="true"),
    "filter by model": lambda index: index.get(SESSIONS, model="example/rare"),
    "filter by condition": lambda index: index.get(SESSIONS, condition="b"),
    "filter by owner": lambda index: index.get(SESSIONS, owner="key:00000001"),
    "list jobs": lambda index: index.get("/v1/jobs"),
    "list ended jobs": lambda index: index.get("/v1/jobs", status="completed"),
    "list queued jobs": lambda index: index.get("/v1/jobs", status="queued"),
    "one queued job": lambda index: index.get(f"/v1/jobs/{index.queued[-1]}"),
    "results": lambda index: index.get(f"/v1/jobs/{random.choice(index.ended)}/results"),
    "samples of a job": lambda index: index.get(f"/v1/jobs/{random.choice(index.ended)}/samples"),
    "claim": Index.claim,
    "delete a session": Index.delete_session,
    "delete a job": lambda index: index.delete(f"/v1/jobs/{index.ended.pop()}"),
}


@contextmanager
def opened(url: str, shape: Shape, home: Path) -> Iterator[Index]:
    """Fill the empty database and serve it."""
    database = Database(url)
    began = time.monotonic()
    migrate.upgrade(database)
    fill(database, shape)
    print(f"{shape.sessions:,} sessions in {time.monotonic() - began:.0f} s", flush=True)
    with database.read() as session:
        newest = sa.select(SessionRow.id).order_by(SessionRow.created_at.desc(), SessionRow.id.desc())
        middle = session.scalars(newest.offset(shape.sessions // 2).limit(1)).one()
        by_age = sa.select(JobRow.id).order_by(JobRow.created_at)
        ended = list(session.scalars(by_age.where(JobRow.status == "completed")))
        queued = list(session.scalars(by_age.where(JobRow.status == "queued")))
    random.shuffle(ended)
    with served(url, home) as client:
        yield Index(database=database, client=client, ended=ended, queued=queued, middle=middle)
    database.close()


def measure(small: Index, full: Index, rounds: int) -> dict[str, dict[str, float]]:
    taken: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in CASES}
    for number in range(rounds + 1):
        for name in random.sample(list(CASES), len(CASES)):
            for place, index in enumerate((small, full)):
                began = time.perf_counter()
                CASES[name](index)
                if number:  # the first round warms up
                    taken[name][place].append(1000 * (time.perf_counter() - began))
    found = {}
    for name, (of_small, of_full) in taken.items():
        before, after = statistics.median(of_small), statistics.median(of_full)
        found[name] = {"small_ms": before, "full_ms": after, "ratio": after / before}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write the results there")
    parser.add_argument("--postgres", action="store_true", help="on a Postgres server of its own")
    parser.add_argument("--small", type=int, default=10_000, help="sessions of the small index")
    parser.add_argument("--full", type=int, default=1_000_000, help="sessions of the full index")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    shapes = [Shape(sessions=options.small), Shape(sessions=options.full)]
    with ExitStack() as stack:
        homes = [Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in shapes]
        urls = [f"sqlite:///{home / 'actograph.db'}" for home in homes]
        if options.postgres:
            server = PostgresServer()
            server.create()
            stack.callback(server.remove)
            for name in ("small_index", "full_index"):
                with server.connect() as connection:
                    connection.execute(f"CREATE DATABASE {name}".encode())
            urls = [server.database_url(name) for name in ("small_index", "full_index")]
        small, full = (
            stack.enter_context(opened(url, shape, home))
            for url, shape, home in zip(urls, shapes, homes, strict=True)
        )
        results = measure(small, full, options.rounds)
        backend = full.database.url.get_backend_name()
    print(f"{options.small:,} and {options.full:,} sessions, {backend}, medians in milliseconds")
    print(f"{'':28}{'small':>10}{'full':>10}{'ratio':>8}")
    for name, row in results.items():
        print(f"{name:28}{row['small_ms']:10.1f}{row['full_ms']:10.1f}{row['ratio']:8.2f}")
    marks = [
        Mark(name=f"{name}: times as long in the full index", measured=row["ratio"], at_most=AT_MOST)
        for name, row in results.items()
        if row["full_ms"] > FLOOR_MS
    ]
    print_marks(marks)
    settings = {"database": backend, "small": options.small, "full": options.full, "rounds": options.rounds}
    write_result(options.json, {"settings": settings, "results": results}, marks)


if __name__ == "__main__":
    main()
