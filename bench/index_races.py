"""Every write to the index at once, from many threads, and whether all of it holds together afterwards.

    python -m bench.index_races [--seconds 120] [--seed 1] [--sqlite | --postgres URL]

Clients submit, cancel, delete, retry, rescore, pause; workers claim, fail, die and commit; two API processes
reconcile, expire, deliver and reap: the service's own routes, drain and reconciler, on the same few jobs
(tests/support/races). What clients and workers do comes of the seed; how it interleaves does not. The exit
status is 1 where the database refused anything (a deadlock, a broken constraint, a serialization failure),
where anything raised what no client is told, or where an invariant does not hold in the end. By default
SQLite and a Postgres of its own are both tried.
"""

import argparse
import sys
import tempfile
import warnings
from pathlib import Path

import sqlalchemy as sa

from storage import migrate
from storage.index.database import Database
from tests.support.races.race import Load, Raced, race
from tests.support.servers.postgres import PostgresServer


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
