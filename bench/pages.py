"""Server time of every page of the dashboard on a large index.

    python -m bench.pages --json bench/results/pages.json

Fills an index with 100,000 sessions and 10,000 jobs, among them a running evaluation of GSM8K's test set
under two conditions and finished analyses, starts the API on it, and reads every page in a random order.
Reported are the service's processor time per page, the median and the largest time until the answer, and its
size. The mark is judged on processor time, since other programs of the machine change it least.
"""

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import sqlalchemy as sa

from actograph.contract.specs import ANALYSIS_QUEUE, ProbeSpec
from bench.index_rows import FIRST_CREATED, Shape, fill
from bench.session_listing import served
from storage import migrate
from storage.index.database import Database
from storage.index.ids import new_job_id, new_sample_id
from storage.tables.models import EventRow, JobRow, SampleRow, SessionRow
from tests.support.marks import Mark, print_marks, write_result

#: most milliseconds of a page
AT_MOST = 200.0
#: problems of GSM8K's test set
PROBLEMS = 1319
CONDITIONS = ("baseline", "ep02")
HTML = {"Accept": "text/html"}
_LAYERS = 28


def add_jobs(database: Database, count: int) -> tuple[str, str]:
    """Add jobs without sessions after all others. Returns the running evaluation and the newest analysis."""
    with database.read() as session:
        last = session.scalar(sa.select(sa.func.max(JobRow.created_at))) or FIRST_CREATED
        source = session.scalars(sa.select(JobRow.id).limit(1)).one()
    spec = ProbeSpec(kind="probe", jobs=[source]).model_dump(mode="json")
    kinds = ("evaluation", "evaluation", "capture", "probe")
    rows = [_job(kinds[number % 4], last + number + 1, spec) for number in range(count - 1)]
    running = _job("evaluation", last + count, spec)
    total = PROBLEMS * len(CONDITIONS)
    running |= {"status": "in_progress", "total": total, "completed": total - 100, "finished_at": None}
    running["spec"] = {**running["spec"], "conditions": [{"name": name} for name in CONDITIONS]}
    analyses = [row for row in rows if row["kind"] == "probe"]
    with database.write() as session:
        session.execute(sa.insert(JobRow), [*rows, running])
        session.execute(
            sa.insert(SampleRow), [_sample(running["id"], place, total) for place in range(total)]
        )
        session.execute(sa.insert(SampleRow), [_analysed(row["id"]) for row in analyses])
        events = [
            {"job_id": row["id"], "event": "job.started", "created_at": row["created_at"], "data": {}}
            for row in [*rows, *[running] * 1000]
        ]
        session.execute(sa.insert(EventRow), events)
    return running["id"], analyses[-1]["id"]


def _job(kind: str, created_at: float, analysis: Mapping[str, Any]) -> dict[str, Any]:
    is_analysis = kind == "probe"
    spec = (
        analysis if is_analysis else {"kind": kind, "conditions": [], "epochs": 1, "capture": {"mode": "off"}}
    )
    return {
        "id": new_job_id(), "kind": kind, "status": "completed", "priority": 5, "total": 1, "completed": 1,
        "model": ANALYSIS_QUEUE if is_analysis else "example/usual", "spec": spec, "created_at": created_at,
        "started_at": created_at, "finished_at": created_at + 60, "failed": 0,
    }  # fmt: skip


def _sample(job_id: str, place: int, total: int) -> dict[str, Any]:
    is_done = place < total - 100
    score = {"value": float(place % 3 > 0), "answer": "42"}
    keys = ("exact_match,strict-match", "exact_match,flexible-extract")
    return {
        "id": new_sample_id(), "job_id": job_id, "position": place, "sample_index": place // 2,
        "condition": CONDITIONS[place % 2], "epoch": 0, "status": "completed" if is_done else "pending",
        "input": {"question": "How many?"}, "prompt": "How many?" * 40, "completion": "#### 42" * 60,
        "finish_reason": "stop", "prompt_tokens": 100, "generated_tokens": 100, "seed": place,
        "stored_scores": dict.fromkeys(keys, score) if is_done else None,
    }  # fmt: skip


def _analysed(job_id: str) -> dict[str, Any]:
    """The sample of a finished probe of all layers."""
    scores = '"auroc": 0.75, "auroc_interval": [0.7, 0.8], "accuracy": 0.7, "accuracy_interval": [0.6, 0.8]'
    baselines = ", ".join(f'"{name}": {{{scores}}}' for name in ("majority", "length", "shuffled_labels"))
    one = f'{{{scores}, "baselines": {{{baselines}}}, "rows": 1319}}'
    hooks = ", ".join(f'"resid_post.{layer}": {one}' for layer in range(_LAYERS))
    return {
        "id": new_sample_id(), "job_id": job_id, "position": 0, "sample_index": 0, "condition": "",
        "epoch": 0, "status": "completed", "input": {},
        "completion": f'{{"kind": "probe", "hooks": {{{hooks}}}}}',
    }  # fmt: skip


def addresses(database: Database, running: str, analysis: str) -> dict[str, str]:
    """Name of a page -> its address."""
    with database.read() as session:
        newest = sa.select(SessionRow).order_by(SessionRow.created_at.desc(), SessionRow.id.desc())
        middle = session.scalars(newest.offset(session.query(SessionRow).count() // 2).limit(1)).one()
        jobs = sa.select(JobRow.id).order_by(JobRow.created_at)
        middle_job = session.scalars(jobs.offset(session.query(JobRow).count() // 2).limit(1)).one()
        queued = session.scalars(jobs.where(JobRow.status == "queued").limit(1)).one()
        sample = session.scalars(sa.select(SampleRow.id).where(SampleRow.job_id == running).limit(1)).one()
        found = {
            "overview": "/",
            "jobs": "/jobs",
            "jobs, middle": f"/jobs?after={middle_job}",
            "jobs by status": "/jobs?status=queued",
            "jobs by kind": "/jobs?kind=capture&order=asc",
            "jobs by tag": "/jobs?tag=all",
            "jobs, nothing matches": "/jobs?tag=nothing&status=failed",
            "running job, 2,638 samples": f"/jobs/{running}",
            "its comparison": f"/jobs/{running}/comparison",
            "its sample": f"/jobs/{running}/samples/{sample}",
            "job with sessions": f"/jobs/{middle.job_id}",
            "queued job": f"/jobs/{queued}",
            "sessions": "/sessions",
            "sessions, middle": f"/sessions?after={middle.id}",
            "sessions by job": f"/sessions?job_id={middle.job_id}",
            "sessions by model": "/sessions?model=example/rare",
            "sessions by condition": "/sessions?condition=b",
            "sessions by common tag": "/sessions?tag=all",
            "sessions by rare tag": "/sessions?tag=rare",
            "sessions by verdict": "/sessions?correct=no",
            "sessions, pinned": "/sessions?pinned=yes",
            "totals of sessions by model": "/sessions/totals?model=example/rare",
            "sessions by all": "/sessions?model=example/usual&condition=a&tag=all&correct=no&pinned=no",
            "session": f"/sessions/{middle.id}",
            "session viewer": f"/sessions/{middle.id}/view",
            "analyses": "/analyses",
            "analyses by kind": "/analyses?kind=compare&status=completed",
            "analysis": f"/analyses/{analysis}",
            "new analysis": f"/analyses/new?job={middle.job_id}",
            "submit": "/submit",
            "models": "/models",
            "workers": "/workers",
            "storage": "/storage",
            "keys": "/keys",
        }
    return found


def measure(client: httpx.Client, pages: Mapping[str, str], rounds: int) -> dict[str, dict[str, float]]:
    """Read every page `rounds` times after a first round."""
    (service,) = psutil.Process().children()
    taken: dict[str, list[float]] = {name: [] for name in pages}
    worked = dict.fromkeys(pages, 0.0)
    sizes: dict[str, int] = {}
    for number in range(rounds + 1):
        for name in random.sample(list(pages), len(pages)):
            before = _processor_seconds(service)
            began = time.perf_counter()
            answer = client.get(pages[name], headers=HTML)
            if number:  # the first round warms up
                taken[name].append(1000 * (time.perf_counter() - began))
                worked[name] += 1000 * (_processor_seconds(service) - before)
            if answer.status_code != 200:
                raise RuntimeError(f"{name}: {pages[name]} answered {answer.status_code}")
            sizes[name] = len(answer.content)
    return {
        name: {
            "processor_ms": worked[name] / rounds,
            "median_ms": statistics.median(times),
            "largest_ms": max(times),
            "bytes": sizes[name],
        }
        for name, times in taken.items()
    }


def _processor_seconds(service: psutil.Process) -> float:
    times = service.cpu_times()
    return float(times.user + times.system)


@contextmanager
def full_service(sessions: int, jobs: int) -> Iterator[tuple[httpx.Client, dict[str, str]]]:
    """The API on a full index of its own, and the addresses of its pages."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'actograph.db'}"
        database = Database(url)
        migrate.upgrade(database)
        fill(database, Shape(sessions=sessions))
        with database.read() as session:
            present = session.query(JobRow).count()
        running, analysis = add_jobs(database, max(16, jobs - present))
        pages = addresses(database, running, analysis)
        database.close()
        with served(url, Path(folder)) as client:
            yield client, pages


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write the results there")
    parser.add_argument("--sessions", type=int, default=100_000)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    with full_service(options.sessions, options.jobs) as (client, pages):
        results = measure(client, pages, options.rounds)
    print(f"{options.sessions:,} sessions and {options.jobs:,} jobs, milliseconds")
    print(f"{'':28}{'processor':>10}{'median':>10}{'largest':>10}{'KiB':>8}")
    for name, row in sorted(results.items(), key=lambda item: -item[1]["processor_ms"]):
        times = "".join(f"{row[key]:10.1f}" for key in ("processor_ms", "median_ms", "largest_ms"))
        print(f"{name:28}{times}{row['bytes'] / 1024:8.0f}")
    marks = [
        Mark(name=f"{name}: milliseconds", measured=row["processor_ms"], at_most=AT_MOST)
        for name, row in results.items()
    ]
    print_marks(marks)
    settings = {"sessions": options.sessions, "jobs": options.jobs, "rounds": options.rounds}
    write_result(options.json, {"settings": settings, "results": results}, marks)


if __name__ == "__main__":
    main()
