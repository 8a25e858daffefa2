"""One job drained by one, two and four workers: how the throughput grows, and that nothing runs twice.

    python -m bench.workers --model DIR --problems FILE.jsonl [--workers 1,2,4] [--rounds 3] [--limit N]
    python -m bench.workers --null 1,8,32,64 [--postgres] [--seconds 10] [--samples 200000] [--no-capture]

Each round starts the service anew for each number of workers, in turn (SQLite, files, one torch thread
for each worker, capture of two points in every layer). Throughput is samples over the time from the first
claim to the last commit, which holds the calling of the idle workers to the job. `join` is the time from
the first claim of all to the first claim of the worker that came last.

The workers share the cores of one machine with API, Redis and the writing of files: more workers
than cores do not help, and on a machine that others use too the ratios say little.

`--null` measures the queue alone, with workers without a model (bench/null_workers.py): samples a second of
one large job, and how long claims and commits take. Every worker asks for its next samples as soon as its
last ones are committed, so the machine is always full, and the times are those of a queue of workers for its
cores: N workers that commit S samples a second in groups of G take N * G / S seconds for a claim and a commit
together, whatever the index does. `--run 2` lets each group run for two seconds first, as a model would: then
the times are those of the index.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import sqlalchemy as sa
from rich.console import Console
from rich.table import Table

from actograph.client import Client
from actograph.contract.resources import JobStatus
from bench import null_workers
from bench.marks import Mark, print_marks, write_result
from bench.service import Service
from storage import migrate
from storage.index.database import Database
from storage.tables.models import SampleRow
from tests.support.servers.postgres import PostgresServer


def drain(count: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """One job through `count` workers."""
    environment = {
        "ACTOGRAPH_MODEL": f"bench={arguments.model.resolve()}",
        "ACTOGRAPH_DATA_ROOTS": str(arguments.problems.resolve().parent),
        "ACTOGRAPH_DEVICE": "cpu",
        "ACTOGRAPH_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "ACTOGRAPH_SLOTS": str(arguments.slots),
    }
    spec = {
        "kind": "evaluation",
        "model": "bench",
        "dataset": {"path": str(arguments.problems.resolve())},
        "limit": arguments.limit,
        "sampling": {"max_tokens": arguments.max_tokens},
        "capture": {"points": ["attn_in", "mlp_in"], "layers": "all"},
    }
    with (
        tempfile.TemporaryDirectory(prefix="actograph-workers-") as home,
        Service(Path(home), worker_module="worker", workers=count, environment=environment) as service,
        Client(service.url) as client,
    ):
        job = client.submit(spec)
        while not (job := client.jobs.get(job.id)).status.is_terminal():
            time.sleep(0.2)
        if job.status is not JobStatus.COMPLETED or job.progress.failed:
            raise SystemExit(f"the job ended as {job.status} with {job.progress.failed} failed samples")
        statement = sa.select(
            SampleRow.worker_id, SampleRow.started_at, SampleRow.finished_at, SampleRow.losses
        ).where(SampleRow.job_id == job.id)
        with service.database.read() as session:
            rows = session.execute(statement).all()
    first: dict[str, float] = {}
    for row in rows:
        first[row.worker_id] = min(first.get(row.worker_id, float("inf")), row.started_at)
    began = min(first.values())
    seconds = max(row.finished_at for row in rows) - began
    return {
        "samples": len(rows),
        "seconds": seconds,
        "samples_per_second": len(rows) / seconds,
        "workers_that_ran": len(first),
        "join_seconds": max(first.values()) - began,
        "run_twice": sum(row.losses > 0 for row in rows),
    }


def drain_null(arguments: argparse.Namespace) -> int:
    """Measure the queue alone, and print a table."""
    counts = [int(text) for text in arguments.null.split(",")]
    with tempfile.TemporaryDirectory(prefix="actograph-null-") as home:
        server = PostgresServer(durable=True) if arguments.postgres else None
        try:
            if server is not None:
                server.create()
            url = f"sqlite:///{home}/index.db" if server is None else server.url
            database = Database(url)
            migrate.upgrade(database)
            database.close()
            found = [
                null_workers.measure(
                    url,
                    count,
                    samples=arguments.samples,
                    seconds=arguments.seconds,
                    group=arguments.group,
                    capture=not arguments.no_capture,
                    run=arguments.run,
                )
                for count in counts
            ]
        finally:
            if server is not None:
                server.remove()
    table = Table(
        "workers", "samples/s", "claim ms", "p99", "commit ms", "p99", "CPU ms of a worker", "lost or doubled"
    )
    for one in found:
        times = [one[name].get(key, 0.0) for name in ("claim_ms", "commit_ms") for key in ("median", "p99")]
        table.add_row(
            str(one["workers"]),
            f"{one['samples_per_second']:.0f}",
            *(f"{value:.1f}" for value in times),
            f"{one['client_cpu_ms']:.1f}",
            str(one["lost_or_doubled"]),
        )
    Console().print(table, f"{os.cpu_count()} cores shared by all processes; load {os.getloadavg()[0]:.1f}")
    doubled = sum(one["lost_or_doubled"] for one in found)
    marks = [Mark(name="samples lost or doubled", measured=doubled, at_most=0)]
    print_marks(marks)
    write_result(arguments.json, {"null": found, "postgres": arguments.postgres}, marks)
    return 0 if all(mark.met for mark in marks) else 1


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, help="model folder")
    parser.add_argument("--problems", type=Path, help="JSONL of question and answer")
    parser.add_argument("--null", metavar="COUNTS", help="numbers of workers without a model")
    parser.add_argument("--postgres", action="store_true", help="with --null: a Postgres of its own")
    parser.add_argument("--seconds", type=float, default=10.0, help="with --null: time of a measurement")
    parser.add_argument("--samples", type=int, default=200_000, help="with --null: samples of the job")
    parser.add_argument("--group", type=int, default=16, help="with --null: samples of a claim")
    parser.add_argument("--run", type=float, default=0.0, help="with --null: seconds that samples run")
    parser.add_argument("--no-capture", action="store_true", help="with --null: samples without sessions")
    parser.add_argument("--workers", default="1,2,4", help="numbers of workers; the first is the measure")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=int, default=400, help="problems")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--json", type=Path, help="write the result here")
    arguments = parser.parse_args()
    if arguments.null:
        return drain_null(arguments)
    if arguments.model is None or arguments.problems is None:
        parser.error("give --model and --problems, or --null")
    counts = [int(text) for text in arguments.workers.split(",")]
    runs: dict[int, list[dict[str, Any]]] = {count: [] for count in counts}
    for _ in range(arguments.rounds):
        for count in counts:
            runs[count].append(drain(count, arguments))
    table = Table("workers", "samples/s", "ratio to the first", "quartiles", "join s", "run twice")
    result: dict[str, Any] = {"runs": {str(count): found for count, found in runs.items()}, "ratio": {}}
    for count in counts:
        ratios = [
            run["samples_per_second"] / base["samples_per_second"]
            for run, base in zip(runs[count], runs[counts[0]], strict=True)
        ]
        result["ratio"][str(count)] = ratios
        low, _, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        table.add_row(
            str(count),
            f"{statistics.median(run['samples_per_second'] for run in runs[count]):.1f}",
            f"{statistics.median(ratios):.2f}",
            f"{low:.2f} to {high:.2f}",
            f"{statistics.median(run['join_seconds'] for run in runs[count]):.2f}",
            str(sum(run["run_twice"] for run in runs[count])),
        )
    Console().print(table, f"{os.cpu_count()} cores shared by all processes; load {os.getloadavg()[0]:.1f}")
    found = [run for runs_of_one in runs.values() for run in runs_of_one]
    marks = [
        Mark(name="samples that ran twice", measured=sum(run["run_twice"] for run in found), at_most=0),
        Mark(
            name="workers that stayed idle",
            measured=sum(count - run["workers_that_ran"] for count in counts for run in runs[count]),
            at_most=0,
        ),
    ]
    print_marks(marks)
    write_result(arguments.json, result, marks)
    return 0 if all(mark.met for mark in marks) else 1


if __name__ == "__main__":
    sys.exit(main())
