"""Cost of a large batch for the API: reading its file, making its job, writing its answers.

    python -m bench.batch_files --lines 50000 --characters 3000 --json results.json
    python -m bench.batch_files --database-url postgresql+psycopg://postgres@127.0.0.1/bench

The store, the index (a new SQLite file, or the empty database that is named) and what moves batches on are
the real ones. There is no worker: between the two steps every sample is given an answer by one statement. The
lines take turns in three captures. The exit status is 1 where the process grew by more than --within-mib.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from actograph.contract.openai_answers import BatchRequest
from actograph.contract.resources import JobStatus, SampleStatus
from actograph.settings import Settings
from api.dependencies import Services
from api.openai.batches import advance
from api.served_models import ServedModels
from bench import process_memory
from bench.marks import Mark, print_marks, write_result
from storage import migrate
from storage.artifacts.factory import open_store
from storage.broker.broker import Broker
from storage.files import files
from storage.index.database import Database, now
from storage.jobs import batches
from storage.tables.models import JobRow, SampleRow

MODEL = "bench"
CAPTURES: list[dict[str, Any] | None] = [
    None,
    {"points": ["resid_post"], "layers": [1]},
    {"hooks": ["mlp_out.0"]},
]
ANSWER = "An answer of some length. " * 10
MIB = 1 << 20


def lines(count: int, characters: int) -> Iterator[bytes]:
    for number in range(count):
        body: dict[str, Any] = {
            "model": MODEL,
            "max_tokens": 64,
            "messages": [{"role": "user", "content": f"{number} " + "x" * characters}],
            "capture": CAPTURES[number % len(CAPTURES)],
        }
        line = {"custom_id": f"line-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
        yield json.dumps(line).encode() + b"\n"


def open_services(home: Path, database_url: str) -> Services:
    settings = Settings(
        home=home,
        model=f"{MODEL}=example/{MODEL}",
        database_url=database_url,
        broker_url="redis://127.0.0.1:1/0",
        batch_max_requests=200_000,
        batch_max_bytes=1 << 40,
    )
    database = Database(settings.effective_database_url)
    migrate.upgrade(database)
    return Services(
        settings=settings,
        database=database,
        store=open_store(settings.effective_artifact_url),
        broker=Broker(settings.broker_url),
        models=ServedModels(settings),
    )


def upload(services: Services, count: int, characters: int) -> tuple[str, int]:
    """(batch, bytes of its file)"""
    with services.database.write() as session:
        file_id = files.announce(session, filename="in", purpose="batch")
    size, sha256 = services.store.put_stream(f"files/{file_id}", lines(count, characters))
    request = BatchRequest(input_file_id=file_id, endpoint="/v1/chat/completions")
    with services.database.write() as session:
        files.publish(session, file_id, size=size, sha256=sha256)
        return batches.create(session, request, "").id, size


def answer_all(services: Services, batch_id: str) -> None:
    """Every sample completes, and the job with them."""
    with services.database.write() as session:
        job_id = batches.get(session, batch_id).job_id
        assert job_id is not None
        done = sa.update(SampleRow).where(SampleRow.job_id == job_id)
        session.execute(
            done.values(
                status=SampleStatus.COMPLETED, prompt="", completion=ANSWER, finish_reason="stop",
                prompt_tokens=500, generated_tokens=60, scores={},
            )
        )  # fmt: skip
        ended = sa.update(JobRow).where(JobRow.id == job_id)
        session.execute(
            ended.values(status=JobStatus.COMPLETED, completed=JobRow.total, finished_at=now(session))
        )


def measured(step: Callable[[], object]) -> dict[str, float]:
    process_memory.trim()
    before = process_memory.in_use(on_gpu=False)
    process_memory.reset_peak(on_gpu=False)
    wall, cpu = time.perf_counter(), time.process_time()
    step()
    return {
        "seconds": time.perf_counter() - wall,
        "cpu_seconds": time.process_time() - cpu,
        "grew_mib": (process_memory.peak(on_gpu=False) - before) / MIB,
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lines", type=int, default=50_000)
    parser.add_argument("--characters", type=int, default=3000, help="of each prompt")
    parser.add_argument("--database-url", default="")
    parser.add_argument("--within-mib", type=float, default=64.0)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as home:
        services = open_services(Path(home), options.database_url)
        batch_id, size = upload(services, options.lines, options.characters)
        made = measured(lambda: advance(services, batch_id))
        answer_all(services, batch_id)
        ended = measured(lambda: advance(services, batch_id))
        with services.database.read() as session:
            batch = batches.resource(session, batches.get(session, batch_id))
        services.database.close()
    assert batch.request_counts.completed == options.lines, batch
    result = {"file_mib": size / MIB, "made": made, "ended": ended}
    print(json.dumps(result, indent=1))
    marks = [
        Mark(name=f"MiB more while {name}", measured=step["grew_mib"], at_most=options.within_mib)
        for name, step in (("the job is made", made), ("answers are written", ended))
    ]
    write_result(options.json, result, marks)
    print_marks(marks)
    return 0 if all(mark.met for mark in marks) else 1


if __name__ == "__main__":
    sys.exit(main())
