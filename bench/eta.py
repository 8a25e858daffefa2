"""How true `eta_seconds` is: predictions at 25, 50 and 75 % of a steady drain against its end.

    python -m bench.eta --json bench/results/eta.json

The drain, the index and the turns are the real ones; the engine sleeps for a time drawn around
--unit-seconds, from a seed. The exit status is 1 where a prediction misses by more than --within.
"""

import argparse
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from actograph.contract.resources import Job, JobStatus
from actograph.contract.specs import job_spec_adapter
from actograph.settings import Settings
from storage import migrate, samples
from storage.artifacts.factory import open_store
from storage.index.database import Database
from storage.jobs import jobs
from storage.queue import job_view, workers
from storage.samples.expansion import capture_samples
from tests.support.marks import Mark, print_marks, write_result
from tests.support.null_engine import NullEngine
from worker.drain.drain import Drain
from worker.engine.requests import Generation, GenerationRequest
from worker.signals.stop_signal import StopSignal

MODEL = "bench"
MARKS = (0.25, 0.5, 0.75)
UNIT_SAMPLES = 8
POLL_SECONDS = 0.02


@dataclass(frozen=True)
class Scenario:
    name: str
    workers: int
    #: (units, priority) of each job, in the order of submission
    jobs: tuple[tuple[int, int], ...]


SCENARIOS = (
    Scenario("one job, one worker", 1, ((40, 5),)),
    Scenario("one job, two workers", 2, ((80, 5),)),
    Scenario("two equal jobs, one worker", 1, ((20, 5), (30, 5))),
    Scenario("three equal jobs, two workers", 2, ((20, 5), (30, 5), (40, 5))),
    Scenario("an urgent job before a late one", 1, ((20, 9), (20, 0))),
)


class SteadyEngine(NullEngine):
    """Takes about the same time for every unit."""

    def __init__(self, seconds: float, seed: int) -> None:
        super().__init__(MODEL)
        self._seconds = seconds
        self._random = random.Random(seed)

    def plan_batch_size(self, *_: Any, **__: Any) -> int:
        return UNIT_SAMPLES

    def generate(
        self, requests: Sequence[GenerationRequest], *, on_step: Callable[[int], None], **options: Any
    ) -> list[Generation]:
        time.sleep(self._seconds * self._random.uniform(0.7, 1.3))
        return super().generate(requests, on_step=on_step, **options)


class NoBroker:
    """Workers look at the index all the time."""

    def wake(self, model: str, hops: int = 0) -> bool:
        return True


class OneEngine:
    def __init__(self, engine: SteadyEngine) -> None:
        self.engine = engine

    def engine_for(self, _name: str) -> SteadyEngine:
        return self.engine


@dataclass
class Watched:
    """One job: what was foretold at each mark, and what came."""

    id: str
    #: mark -> (when it was asked, the seconds that were foretold)
    foretold: dict[float, tuple[float, float]] = field(default_factory=dict)
    ended_at: float | None = None

    def look(self, job: Job) -> None:
        if job.status.is_terminal():
            self.ended_at = self.ended_at or time.monotonic()
            return
        part = (job.progress.completed + job.progress.failed) / job.progress.total
        for mark in MARKS:
            if part >= mark and mark not in self.foretold and job.eta_seconds is not None:
                self.foretold[mark] = (time.monotonic(), job.eta_seconds)

    def errors(self) -> dict[str, float]:
        """Mark -> by how much of the true time the prediction missed; positive is too late."""
        if self.ended_at is None:
            raise SystemExit(f"job {self.id} did not end")
        if set(self.foretold) != set(MARKS):
            raise SystemExit(f"job {self.id} was foretold at {sorted(self.foretold)} alone")
        return {
            f"{mark:.0%}": seconds / (self.ended_at - asked) - 1
            for mark, (asked, seconds) in self.foretold.items()
        }


def submit(database: Database, units: int, priority: int) -> str:
    spec: Any = job_spec_adapter.validate_python(
        {
            "kind": "capture",
            "model": MODEL,
            "inputs": [{"prompt": "x"}] * (units * UNIT_SAMPLES),
            "capture": None,
            "sampling": {"max_tokens": 1},
            "priority": priority,
        }
    )
    with database.write() as session:
        total = units * UNIT_SAMPLES
        row = jobs.create(session, kind="capture", model=MODEL, spec=spec, hooks=[], total=total)
        samples.insert(session, row.id, capture_samples(spec))
    return row.id


def measure(scenario: Scenario, home: Path, arguments: argparse.Namespace) -> list[dict[str, float]]:
    """The errors of each job of a scenario, in the order of submission."""
    settings = Settings(home=home, turn_seconds=arguments.unit_seconds / 2, disk_floor_bytes=0)
    database = Database(settings.effective_database_url)
    migrate.upgrade(database)
    finished = threading.Event()

    def work(number: int) -> None:
        engine = SteadyEngine(arguments.unit_seconds, arguments.seed + number)
        worker_id = f"wrk_{number:032x}"
        with database.write() as session:
            workers.register(session, worker_id, hostname="here", pid=number + 1, model=MODEL)
            workers.set_ready(session, worker_id, engine.structure)
        drain = Drain(
            settings=settings,
            database=database,
            store=open_store(settings.effective_artifact_url),
            broker=NoBroker(),  # type: ignore[arg-type]
            models=OneEngine(engine),  # type: ignore[arg-type]
            worker_id=worker_id,
            stop=StopSignal.create(home),
        )
        while not finished.is_set():
            if not drain.look():
                time.sleep(POLL_SECONDS)

    watched = [Watched(submit(database, units, p)) for units, p in scenario.jobs]
    threads = [threading.Thread(target=work, args=(n,)) for n in range(scenario.workers)]
    for thread in threads:
        thread.start()
    try:
        deadline = time.monotonic() + 600
        while any(one.ended_at is None for one in watched) and time.monotonic() < deadline:
            for one in watched:
                with database.read() as session:
                    one.look(job_view.resource(session, jobs.get(session, one.id)))
            time.sleep(POLL_SECONDS)
    finally:
        finished.set()
        for thread in threads:
            thread.join()
    with database.read() as session:
        statuses = {jobs.status_of(session, one.id) for one in watched}
    database.close()
    if statuses != {JobStatus.COMPLETED}:
        raise SystemExit(f"the jobs ended as {statuses}")
    return [one.errors() for one in watched]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--unit-seconds", type=float, default=0.2, help="time of a unit of 8 samples")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--within", type=float, default=0.2, help="largest error that passes")
    parser.add_argument("--json", type=Path, help="write the result here")
    arguments = parser.parse_args()
    table = Table("scenario", "job", *(f"at {mark:.0%}" for mark in MARKS), title="eta_seconds, error")
    results: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory(prefix="actograph-bench-") as scratch:
        for number, scenario in enumerate(SCENARIOS):
            results[scenario.name] = measure(scenario, Path(scratch) / str(number), arguments)
            for place, errors in enumerate(results[scenario.name]):
                figures = [f"{errors[f'{mark:.0%}']:+.1%}" for mark in MARKS]
                table.add_row("" if place else scenario.name, str(place + 1), *figures)
    worst = max(abs(error) for found in results.values() for errors in found for error in errors.values())
    Console().print(table)
    name = "eta_seconds at 25, 50 and 75 % of a steady drain: largest error"
    marks = [Mark(name=name, measured=worst, at_most=arguments.within)]
    print_marks(marks)
    write_result(arguments.json, {"unit_seconds": arguments.unit_seconds, "errors": results}, marks)
    return 0 if all(mark.met for mark in marks) else 1


if __name__ == "__main__":
    sys.exit(main())
