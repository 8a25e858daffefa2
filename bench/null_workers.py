"""Workers without a model: claims and commits of one large job, and nothing else.

Run by `python -m bench.workers --null`. A worker is a thread that claims samples and commits them at once, as
the drain does it. Each process has several of them, since the machine has few cores.
"""

import json
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from actograph.contract import resources
from actograph.contract.job_specs import CaptureJobSpec
from actograph.contract.resources import SampleStatus
from storage import migrate
from storage.index.database import Database
from storage.index.ids import new_worker_id
from storage.queue import claim, commit, workers
from storage.queue.claim import Asking, Claim, HeldModel
from storage.queue.commit import Ended, SampleResult
from storage.queue.leases import LeasedSample
from storage.samples import NewSample
from storage.sessions.sessions import NewSession
from storage.submission import bulk_insert
from storage.tables.models import JobRow, SampleRow

MODEL = "null"
HOOK = "resid_post.0"
PROCESSES = 16
#: seconds after which a thread lets others run; after 5 ms, an answer of the database waits for so long
SWITCH_SECONDS = 0.0005
#: claims and commits of each worker before it is measured
WARM_UP = 2


def measure(
    database_url: str,
    count: int,
    *,
    samples: int,
    seconds: float,
    group: int,
    capture: bool,
    run: float = 0.0,
) -> dict[str, Any]:
    """Drain a job of `samples` samples with `count` workers for so many seconds.

    Args:
        database_url: an index at the newest schema.
        group: samples of a claim, and of its commit.
        capture: whether each sample has a session.
        run: seconds between a claim and its commit, as if a model ran.
    """
    database = Database(database_url)
    job_id = _insert(database, samples, capture=capture)
    processes = min(count, PROCESSES)
    shares = [count // processes + (i < count % processes) for i in range(processes)]
    options = {"url": database_url, "group": group, "seconds": seconds, "run": run}
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "bench.null_workers", json.dumps(options | {"workers": share})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).resolve().parents[1],
        )
        for share in shares
    ]
    for child in children:  # all begin at once
        assert child.stdout is not None
        child.stdout.readline()
    begin = f"{time.time() + 0.5}\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.write(begin)
        child.stdin.flush()
    answers = [child.communicate()[0] for child in children]
    if any(child.returncode for child in children):
        raise SystemExit("a worker of the bench failed")
    found = [json.loads(answer.splitlines()[-1]) for answer in answers]
    claims = sorted(one for answer in found for one in answer["claims"])
    commits = sorted(one for answer in found for one in answer["commits"])
    kept, before = (sum(answer[name] for answer in found) for name in ("kept", "before"))
    with database.read() as session:
        of_job = sa.select(sa.func.count()).where(
            SampleRow.job_id == job_id, SampleRow.status == SampleStatus.COMPLETED
        )
        stored = session.scalar(of_job) or 0
    # the next measurement must not find it
    with database.write() as session:
        session.execute(sa.update(JobRow).where(JobRow.id == job_id).values(pending=0, status="cancelled"))
    database.close()
    return {
        "workers": count,
        "samples": kept,
        "samples_per_second": kept / seconds,
        "lost_or_doubled": abs(stored - kept - before),
        "claims": len(claims),
        "client_cpu_ms": 1000 * sum(answer["cpu"] for answer in found) / max(1, len(commits)),
        "claim_ms": _times(claims),
        "commit_ms": _times(commits),
    }


def _times(found: Sequence[float]) -> Mapping[str, float]:
    if len(found) < 2:
        return {}
    cuts = statistics.quantiles(found, n=100)
    return {"median": 1000 * cuts[49], "p99": 1000 * cuts[98], "max": 1000 * found[-1]}


def _insert(database: Database, samples: int, *, capture: bool) -> str:
    spec = CaptureJobSpec.model_validate(
        {
            "kind": "capture",
            "model": MODEL,
            "inputs": [{"prompt": "how many?"}],
            "capture": {"hooks": [HOOK]} if capture else None,
            "sampling": {"max_tokens": 4},
            "tags": ["null"],
        }
    )
    new = (
        NewSample(sample_index=i, condition="", epoch=0, input={"prompt": f"how many are {i}?"}, seed=i)
        for i in range(samples)
    )
    return bulk_insert.insert_job(database, spec, new, total=samples, owner="local").id


def _ended(lease: LeasedSample) -> Ended:
    """The outcome of a sample of some length."""
    result = SampleResult(
        prompt=f"Question: {lease.input['prompt']}\nAnswer:",
        completion="There are so many, since each of them has another beside it. " * 4,
        finish_reason="stop",
        prompt_tokens=20,
        generated_tokens=60,
        scores={"exact_match": resources.Score(value=1.0, answer="42")},
        session_id=lease.session_id,
    )
    if lease.session_id is None:
        return Ended(lease=lease, result=result)
    info = resources.TensorInfo(shape=[80, 1024], dtype="BF16", first_row=0, nbytes=163840)
    files = [resources.SessionFile(name="activations.safetensors", bytes=163840, sha256="0" * 64)]
    stored = NewSession(
        id=lease.session_id, job_id=lease.job_id, sample_id=lease.id, model=MODEL, prompt_tokens=20,
        generated_tokens=60, rows=80, dtype="BF16", hooks={HOOK: info}, files=files, correct=True,
        **lease.shown,
    )  # fmt: skip
    return Ended(lease=lease, result=result, session=stored)


class _Worker:
    """One worker: claims, and commits what it has claimed."""

    def __init__(self, database: Database, options: Mapping[str, Any], may_begin: threading.Event) -> None:
        self._database, self._options, self._may_begin = database, options, may_begin
        self._id = new_worker_id()
        with database.write() as session:
            workers.register(session, self._id, hostname="bench", pid=1, model=MODEL)
            workers.set_idle(session, self._id, MODEL)
        self.claims: list[float] = []
        self.commits: list[float] = []
        #: samples stored while it was measured, and before
        self.kept = self.before = 0
        self.is_warm = threading.Event()
        self._busy_with: str | None = None
        #: workers do not all begin together
        self._waits = random.uniform(0.0, options["run"])
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        try:
            # the job is started, and statements are compiled once for each process
            self.before = sum(self._turn(run=0.0) for _ in range(WARM_UP))
        finally:
            self.is_warm.set()
        self.claims.clear()
        self.commits.clear()
        self._may_begin.wait()
        ends = self._options["begin"] + self._options["seconds"]
        time.sleep(max(0.0, self._options["begin"] - time.time()) + self._waits)
        while time.time() < ends:
            self.kept += self._turn(run=self._options["run"])

    def _turn(self, *, run: float) -> int:
        """Claim, run and commit. Returns how many samples were stored."""
        begun = time.perf_counter()
        found = self._claim()
        claimed = time.perf_counter()
        self._busy_with = None if found is None else found.job.id
        self.claims.append(claimed - begun)
        if found is None or not found.samples:
            time.sleep(0.05)
            return 0
        time.sleep(run)
        ended = [_ended(lease) for lease in found.samples]
        begun = time.perf_counter()
        stored = len(commit.store(self._database, ended, seconds=0.1).kept)
        self.commits.append(time.perf_counter() - begun)
        return stored

    def _claim(self) -> Claim | None:
        """As the drain does while samples run; without quotas it reads none."""
        asking = Asking(worker_id=self._id, held=HeldModel(MODEL), busy_with=self._busy_with)
        return claim.claim(self._database, asking, lambda _job: self._options["group"])


def main() -> None:
    options = json.loads(sys.argv[1])
    sys.setswitchinterval(SWITCH_SECONDS)
    database = Database(options["url"], pool_size=options["workers"])
    migrate.require_current(database)
    may_begin = threading.Event()
    found = [_Worker(database, options, may_begin) for _ in range(options["workers"])]
    for worker in found:
        worker.is_warm.wait()
    print("ready", flush=True)
    options["begin"] = float(sys.stdin.readline())
    before = time.process_time()
    may_begin.set()
    for worker in found:
        worker.join()
    answer = {
        "cpu": time.process_time() - before,
        "kept": sum(worker.kept for worker in found),
        "before": sum(worker.before for worker in found),
        "claims": [one for worker in found for one in worker.claims],
        "commits": [one for worker in found for one in worker.commits],
    }
    print(json.dumps(answer))
    database.close()


if __name__ == "__main__":
    main()
