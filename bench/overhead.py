"""Cost of the service itself: a job's way with an engine that generates nothing.

    python -m bench.overhead [--rate 500] [--seconds 30] [--rounds 200] [--postgres [URL]] [--json FILE]

Real API, Redis, worker and database as processes of their own; the worker's engine answers at once
(tests/support/null_worker.py). Three questions for each database:

* submit -> stored: one job of one sample at a time, from before the request is sent until another
  connection to the database reads the job as completed;
* acceptance: so many submits a second for so long, from clients that do not slow down with the
  service; every job must become a row, and all must have ended when the drain is done;
* an urgent job in the middle of a long one: how many units of the long one begin after it was
  submitted and before it starts. Here a unit takes 0.1 s.

`--postgres` names an empty database, a SQLAlchemy URL, and its tables are dropped first; without a URL a
server of its own is started, which is as durable as Postgres is by default.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import psutil
import sqlalchemy as sa
from rich.console import Console
from rich.table import Table

from actograph.client import Client
from actograph.contract.resources import JobStatus, SampleStatus
from bench import submitters
from bench.marks import Mark, print_marks, write_result
from bench.service import Service
from storage.index.database import Database
from storage.tables.models import Base, JobRow, SampleRow
from tests.support.servers.postgres import PostgresServer

WORKER = "tests.support.null_worker"
MODEL = "null=example/null"
SPEC: dict[str, Any] = {
    "kind": "capture",
    "model": "null",
    "inputs": [{"prompt": "one and two"}],
    "capture": None,
    "sampling": {"max_tokens": 4},
}
UNIT_SECONDS = 0.1
LONG_JOB_SAMPLES = 1600
URGENT_JOBS = 10
DRAIN_PATIENCE_SECONDS = 1200.0
#: the server that is started here
OWN = "own"
POLL_SECONDS = 0.001


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of them do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def latency(service: Service, rounds: int) -> dict[str, float]:
    """Seconds from submitting to stored, one job at a time."""
    found = []
    with Client(service.url) as client:
        for turn in range(rounds + 5):
            started = time.perf_counter()
            job_id = client.submit(SPEC).id
            while _status(service.database, job_id) is not JobStatus.COMPLETED:
                time.sleep(POLL_SECONDS)
            if turn >= 5:  # the first ones open connections and fill caches
                found.append(time.perf_counter() - started)
    return {
        "jobs": rounds,
        "p50_ms": 1e3 * percentile(found, 0.5),
        "p99_ms": 1e3 * percentile(found, 0.99),
        "max_ms": 1e3 * max(found),
    }


def acceptance(service: Service, rate: float, seconds: float) -> dict[str, Any]:
    """Submit at a steady rate, then let the worker drain what was accepted."""
    before, cpu_before = _count(service.database), _cpu_seconds(service)
    sent = submitters.submit(service.port, json.dumps(SPEC).encode(), rate=rate, seconds=seconds)
    api_cpu = _cpu_seconds(service) - cpu_before
    rows = _count(service.database) - before
    drain_started, ended = time.monotonic(), _count(service.database, completed=True)
    while (
        open_jobs := _open(service.database)
    ) and time.monotonic() < drain_started + DRAIN_PATIENCE_SECONDS:
        time.sleep(0.2)
    drained = time.monotonic() - drain_started
    completed = _count(service.database, completed=True) - before
    accepted = sent.statuses[202]
    return {
        "requests": sum(sent.statuses.values()),
        "accepted": accepted,
        "other_answers": {str(k): v for k, v in sent.statuses.items() if k != 202},
        "accepted_per_second": accepted / sent.wall_seconds,
        "answer_p50_ms": 1e3 * percentile(sent.seconds, 0.5),
        "answer_p99_ms": 1e3 * percentile(sent.seconds, 0.99),
        "api_cpu_ms_per_submit": 1e3 * api_cpu / max(1, accepted),
        "client_cpu_ms_per_submit": 1e3 * sent.cpu_seconds / max(1, accepted),
        "rows": rows,
        "completed": completed,
        "lost": accepted - completed,
        "run_twice": _run_twice(service.database),
        "left_open": open_jobs,
        "drained_meanwhile": ended - before,
        "drain_seconds_after": drained,
        "drain_jobs_per_second": (completed - (ended - before)) / drained if drained else 0.0,
    }


def _cpu_seconds(service: Service) -> float:
    """CPU time of all API processes."""
    if service.api is None or service.api.pid is None:
        raise SystemExit("the API is not running")
    first = psutil.Process(service.api.pid)
    return sum(sum(one.cpu_times()[:2]) for one in (first, *first.children(recursive=True)))


def urgent(service: Service) -> dict[str, float]:
    """Submit urgent jobs while a long one runs; units of 0.1 s."""
    with Client(service.url) as client:
        long_spec = SPEC | {"inputs": SPEC["inputs"] * LONG_JOB_SAMPLES}
        long_job = client.submit(long_spec).id
        while client.jobs.get(long_job).progress.completed == 0:
            time.sleep(0.05)
        asked, made = [], []
        for turn in range(URGENT_JOBS):
            # at another moment of the unit in hand each time
            time.sleep(3 * UNIT_SECONDS * (1 + turn / URGENT_JOBS))
            asked.append(time.time())
            made.append(client.submit(SPEC | {"priority": 0}).id)
            while not client.jobs.get(made[-1]).status.is_terminal():
                time.sleep(0.02)
        if client.jobs.get(long_job).status.is_terminal():
            raise SystemExit("the long job ended too soon")
        client.jobs.cancel(long_job)
    with service.database.read() as session:
        begun = set(session.scalars(sa.select(SampleRow.started_at).where(SampleRow.job_id == long_job)))
        found = session.execute(
            sa.select(SampleRow.job_id, SampleRow.started_at).where(SampleRow.job_id.in_(made))
        ).all()
    started: dict[str, float] = {row.job_id: row.started_at for row in found}
    waits = [started[job_id] - at for job_id, at in zip(made, asked, strict=True)]
    units = [
        sum(b is not None and at < b < started[job_id] for b in begun)
        for job_id, at in zip(made, asked, strict=True)
    ]
    return {
        "urgent_jobs": len(made),
        "unit_ms": 1e3 * UNIT_SECONDS,
        "wait_p50_ms": 1e3 * percentile(waits, 0.5),
        "wait_max_ms": 1e3 * max(waits),
        "units_begun_before_it_max": max(units),
    }


def _status(database: Database, job_id: str) -> JobStatus:
    with database.read() as session:
        return JobStatus(session.execute(sa.select(JobRow.status).where(JobRow.id == job_id)).scalar_one())


def _count(database: Database, *, completed: bool = False) -> int:
    statement = sa.select(sa.func.count()).select_from(JobRow)
    if completed:
        statement = statement.where(JobRow.status == JobStatus.COMPLETED)
    with database.read() as session:
        return int(session.execute(statement).scalar_one())


def _open(database: Database) -> int:
    statement = sa.select(sa.func.count()).where(
        SampleRow.status.in_((SampleStatus.PENDING, SampleStatus.LEASED))
    )
    with database.read() as session:
        return int(session.execute(statement).scalar_one())


def _run_twice(database: Database) -> int:
    with database.read() as session:
        return int(session.execute(sa.select(sa.func.count()).where(SampleRow.losses > 0)).scalar_one())


def measure(database_url: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Everything on one database."""
    result: dict[str, Any] = {}
    plain = {"ACTOGRAPH_MODEL": MODEL, "ACTOGRAPH_DISK_FLOOR_BYTES": "0"}
    slow = {**plain, "BENCH_UNIT_SECONDS": str(UNIT_SECONDS)}
    for environment, parts in ((plain, ("latency", "acceptance")), (slow, ("urgent",))):
        if database_url:
            _empty(database_url)
        with (
            tempfile.TemporaryDirectory(prefix="actograph-overhead-") as home,
            Service(
                Path(home),
                worker_module=WORKER,
                database_url=database_url,
                environment=environment,
                apis=arguments.apis,
            ) as service,
        ):
            if "latency" in parts:
                result["latency"] = latency(service, arguments.rounds)
            if "acceptance" in parts:
                result["acceptance"] = acceptance(service, arguments.rate, arguments.seconds)
            if "urgent" in parts:
                result["urgent"] = urgent(service)
    return result


def _empty(url: str) -> None:
    database = Database(url)
    with database.engine.begin() as connection:
        Base.metadata.drop_all(connection)
        connection.execute(sa.text("DROP TABLE IF EXISTS alembic_version"))
    database.close()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rate", type=float, default=500.0, help="submits per second")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long to submit")
    parser.add_argument("--apis", type=int, default=3, help="API processes behind the one address")
    parser.add_argument("--rounds", type=int, default=200, help="jobs of the latency measurement")
    parser.add_argument(
        "--postgres",
        nargs="?",
        const=OWN,
        default="",
        metavar="URL",
        help="on Postgres too: this empty database, or without a URL a server of its own",
    )
    parser.add_argument("--skip-sqlite", action="store_true")
    parser.add_argument("--json", type=Path, help="write the result here")
    arguments = parser.parse_args()
    results = {} if arguments.skip_sqlite else {"sqlite": measure("", arguments)}
    if arguments.postgres == OWN:
        server = PostgresServer(durable=True)
        server.create()
        try:
            results["postgres"] = measure(server.url, arguments)
        finally:
            server.remove()
    elif arguments.postgres:
        results["postgres"] = measure(arguments.postgres, arguments)
    table = Table("", *results, title="service overhead, null engine")
    for part in ("latency", "acceptance", "urgent"):
        for key in next(iter(results.values()))[part]:
            table.add_row(f"{part}: {key}", *(_shown(side[part][key]) for side in results.values()))
    Console().print(table)
    marks = [
        Mark(
            name=f"submit -> stored with a null engine, p50 in ms, {database}",
            measured=side["latency"]["p50_ms"],
            at_most=50.0,
        )
        for database, side in results.items()
    ]
    for database, side in results.items():
        accepted = side["acceptance"]
        marks += [
            Mark(name=f"the same, p99, {database}", measured=side["latency"]["p99_ms"], at_most=250.0),
            Mark(
                name=f"submits that were not accepted and completed, {database}",
                measured=accepted["requests"] - accepted["completed"],
                at_most=0,
            ),
            Mark(
                name=f"units of a long job begun before an urgent one, {database}",
                measured=side["urgent"]["units_begun_before_it_max"],
                at_most=1,
            ),
        ]
    print_marks(marks)
    write_result(arguments.json, results, marks)
    lost = sum(side["acceptance"]["lost"] + side["acceptance"]["run_twice"] for side in results.values())
    return 1 if lost else 0


def _shown(value: Any) -> str:
    return f"{value:,.1f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    sys.exit(main())
