"""Cost of a page of sessions in a large index, over HTTP.

    python -m bench.session_listing --json results.json
    python -m bench.session_listing --database-url postgresql+psycopg://postgres@127.0.0.1/bench

Fills an index (a new SQLite file, or the empty database that is named) with rows of 100,000 sessions,
starts the API on it and times requests one after the other: pages at the start, in the middle and at the
end, each filter, and totals. The cases are asked in a random order in every round. Reported are the
median and the 95th percentile of the time from request to the last byte of the answer.
"""

import argparse
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import sqlalchemy as sa

from actograph.stack.ports import free_port
from bench.marks import Mark, print_marks, write_result
from bench.session_rows import Shape, fill
from storage import migrate
from storage.index.database import Database
from storage.tables.models import JobRow, SessionRow

SESSIONS = "/v1/activations/sessions"
Params = dict[str, str | int | float]


@contextmanager
def served(database_url: str, home: Path) -> Iterator[httpx.Client]:
    """The API as a process of its own, without broker and workers."""
    port = free_port("127.0.0.1")
    environment = os.environ | {
        "ACTOGRAPH_HOME": str(home),
        "ACTOGRAPH_DATABASE_URL": database_url,
        "ACTOGRAPH_BROKER_URL": "redis://127.0.0.1:1/0",
        "ACTOGRAPH_PORT": str(port),
        "ACTOGRAPH_LOG_LEVEL": "error",
        "ACTOGRAPH_RECONCILE_SECONDS": "3600",
    }
    process = subprocess.Popen([sys.executable, "-m", "api"], env=environment)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False) as client:
            while True:
                try:
                    client.get("/livez").raise_for_status()
                    break
                except httpx.TransportError:
                    if process.poll() is not None:
                        raise SystemExit("the API did not start") from None
                    time.sleep(0.05)
            yield client
    finally:
        process.terminate()
        process.wait()


def cases(database: Database) -> dict[str, tuple[str, Params]]:
    """Name -> path and query."""
    with database.read() as session:
        count = session.execute(sa.select(sa.func.count()).select_from(SessionRow)).scalar_one()
        newest_first = sa.select(SessionRow.id).order_by(SessionRow.created_at.desc(), SessionRow.id.desc())
        middle = session.scalars(newest_first.offset(count // 2).limit(1)).one()
        end = session.scalars(newest_first.offset(max(0, count - 30)).limit(1)).one()
        job_id = session.scalars(sa.select(JobRow.id).order_by(JobRow.created_at).limit(1)).one()
        moment = session.execute(sa.select(sa.func.max(SessionRow.created_at))).scalar_one() - count // 2
    lists: dict[str, Params] = {
        "start": {},
        "start, 100 to a page": {"limit": 100},
        "middle": {"after": middle},
        "end": {"after": end},
        "start, oldest first": {"order": "asc"},
        "job": {"job_id": job_id},
        "job, correct": {"job_id": job_id, "correct": "true"},
        "job, condition, tag": {"job_id": job_id, "condition": "rare", "tag": "rare"},
        "correct (1 in 50)": {"correct": "true"},
        "incorrect, middle": {"correct": "false", "after": middle},
        "tag of all, middle": {"tag": "all", "after": middle},
        "tag of few": {"tag": "rare"},
        "tag of few, correct": {"tag": "rare", "correct": "true"},
        "no such tag": {"tag": "none"},
        "usual model": {"model": "example/usual"},
        "rare model": {"model": "example/rare"},
        "usual model, correct": {"model": "example/usual", "correct": "true"},
        "condition, middle": {"condition": "c0", "after": middle},
        "rare condition": {"condition": "rare"},
        "rare condition, other model": {"condition": "rare", "model": "example/usual"},
        "sample_index": {"sample_index": 7},
        "owner, middle": {"owner": f"key:{1:08x}", "after": middle},
        "created before the middle": {"created_before": moment},
        "pinned (none)": {"pinned": "true"},
        "a shortened id": {"id_prefix": middle[:16]},
        "no such id": {"id_prefix": "ses_0000000000"},
    }
    totals: dict[str, Params] = {
        "totals": {},
        "totals of a job": {"job_id": job_id},
        "totals of the correct": {"correct": "true"},
        "totals of a tag": {"tag": "rare"},
        "totals of a model": {"model": "example/usual"},
    }
    found: dict[str, tuple[str, Params]] = {f"list: {name}": (SESSIONS, p) for name, p in lists.items()}
    found |= {name: (f"{SESSIONS}/stats", p) for name, p in totals.items()}
    found["usage by owner"] = ("/v1/activations/stats", {})
    return found


def measure(
    client: httpx.Client, wanted: dict[str, tuple[str, Params]], rounds: int
) -> dict[str, dict[str, float]]:
    taken: dict[str, list[float]] = {name: [] for name in wanted}
    items: dict[str, int] = {}
    for number in range(rounds + 1):
        for name, (path, params) in random.sample(list(wanted.items()), len(wanted)):
            start = time.perf_counter()
            answer = client.get(path, params=params)
            elapsed = time.perf_counter() - start
            answer.raise_for_status()
            body = answer.json()
            items[name] = len(body["data"]) if "data" in body else body["sessions"]
            if number:  # the first round warms up
                taken[name].append(elapsed * 1000)
    return {
        name: {
            "items": items[name],
            "p50_ms": statistics.median(times),
            "p95_ms": statistics.quantiles(times, n=20)[-1],
        }
        for name, times in taken.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write the results there")
    parser.add_argument("--database-url", help="an empty database; default: a new SQLite file")
    parser.add_argument("--sessions", type=int, default=100_000)
    parser.add_argument("--hooks", type=int, default=6, help="tensors of each session")
    parser.add_argument("--rounds", type=int, default=40)
    options = parser.parse_args()
    shape = Shape(sessions=options.sessions, hooks=options.hooks)
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        url = options.database_url or f"sqlite:///{home / 'actograph.db'}"
        database = Database(url)
        migrate.upgrade(database)
        with database.read() as session:
            held = session.execute(sa.select(sa.func.count()).select_from(SessionRow)).scalar_one()
        if held == 0:
            fill(database, shape)
        elif held != shape.sessions:
            raise SystemExit(f"the database holds {held} sessions; name an empty one")
        wanted = cases(database)
        with served(url, home) as client:
            results = measure(client, wanted, options.rounds)
        backend = database.url.get_backend_name()
        database.close()
    print(f"{shape.sessions:,} sessions of {shape.hooks} tensors, {backend}, milliseconds")
    print(f"{'':36}{'items':>8}{'p50':>10}{'p95':>10}")
    for name, row in results.items():
        print(f"{name:36}{row['items']:8.0f}{row['p50_ms']:10.1f}{row['p95_ms']:10.1f}")
    worst = max(row["p50_ms"] for name, row in results.items() if name.startswith("list: "))
    marks = [Mark(name="slowest list of sessions, p50 (ms)", measured=worst, at_most=50)]
    print()
    print_marks(marks)
    settings = {
        "database": backend,
        "sessions": shape.sessions,
        "hooks": shape.hooks,
        "rounds": options.rounds,
    }
    write_result(options.json, {"settings": settings, "results": results}, marks)


if __name__ == "__main__":
    main()
