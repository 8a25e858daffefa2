"""Drains GSM8K with capture while everything is killed at random, and compares with an undisturbed run.

    python -m bench.chaos --model DIR --problems FILE.jsonl [--faults N] [--seed S] [--json FILE]

`actograph up` (SQLite, files, its own broker) first runs the job greedily and sampled, undisturbed. Then
the same two jobs are run again and again until N faults have hit, each at a random moment at which
samples were in hand and finished ones had been seen since the fault before; the last job ends by
itself. Recovery is the time from a fault to the end of the last sample that anybody held when it
struck; faults may overlap. Exit status 1 where anything is lost, duplicated, unreadable or different,
was run again without having been in the hand of a victim, or is left over after a sweep.
"""

import argparse
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import psutil
import sqlalchemy as sa
from rich.console import Console
from rich.table import Table

from actograph.cli.stack_process import StackProcess
from actograph.client.http import Client
from actograph.contract.errors import ActographError
from actograph.contract.resources import Job, Sample, SampleStatus
from bench.chaos_audit import Audit, audit_job
from bench.chaos_faults import FAULTS, Injected, NotMidWork, Stack
from bench.marks import Mark, write_result
from storage.artifacts.local import STAGING
from storage.artifacts.store import ArtifactStore, open_store
from storage.database import Database
from storage.models import SampleRow
from storage.sweep import sweep_sessions

SAMPLINGS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 0.8, "top_p": 0.95, "seed": 11},
}
#: a service that makes no progress for so long will not recover by itself
PATIENCE_SECONDS = 120.0
GAP_SECONDS = 1.5
RECONCILE_SECONDS = 1.0
SLICE_SECONDS = 10.0
SWEEP_ALL = -60.0
ENDED = (SampleStatus.COMPLETED, SampleStatus.FAILED)


class Stuck(Exception):
    """The drain does not go on by itself."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One fault and what it cost."""

    kind: str
    at: float
    in_hand: int
    #: seconds to the next sample that ended, and to the end of all that were held
    progress_seconds: float
    recovery_seconds: float


@dataclass(frozen=True, kw_only=True)
class Report:
    faults: list[Fault]
    audit: Audit
    jobs: int
    seconds: float
    #: longest time in the disturbed part in which no sample ended
    longest_silence_seconds: float
    #: samples that ran again although no victim held them
    repeated_beyond_hand: int
    orphan_sessions: int
    staging_leftovers: int
    left_after_sweep: int

    def is_clean(self) -> bool:
        return self.audit.is_clean() and not self.repeated_beyond_hand and not self.left_after_sweep


class Chaos:
    """One run against a started service."""

    def __init__(
        self, stack: Stack, client: Client, spec: dict[str, Any], *, seed: int, jobs_at_once: int
    ) -> None:
        self._stack = stack
        self._client = client
        self._spec = spec
        self._random = random.Random(seed)
        self._jobs_at_once = jobs_at_once
        self.injected: list[tuple[str, Injected]] = []
        #: sampling, job id
        self.jobs: list[tuple[str, str]] = []

    def undisturbed(self) -> dict[str, list[Sample]]:
        """The samples of each sampling, run in peace."""
        made = {name: self._submit(name) for name in SAMPLINGS}
        self._await(lambda: self._open(list(made.values())) == 0, "the undisturbed run did not end")
        return {name: list(self._client.samples(job_id)) for name, job_id in made.items()}

    def disturb(self, faults: int) -> None:
        """Inject that many faults into jobs that follow one another, and wait for the end of the last."""
        names, weights = list(FAULTS), [weight for _, weight in FAULTS.values()]
        seen = 0
        for kind in self._random.choices(names, weights, k=faults):
            gap = self._random.uniform(0.0, GAP_SECONDS)
            self._await(partial(self._has_progressed, seen), f"no progress before {kind!r}")
            time.sleep(gap)
            self.injected.append((kind, self._inject(kind)))
            seen = self._ended()
            Console(stderr=True).print(f"{len(self.injected)}/{faults} {kind}", highlight=False)
        self._await(lambda: self._open([i for _, i in self.jobs]) == 0, "the last jobs did not end")

    def faults(self) -> list[Fault]:
        """What the index says of the time after each fault."""
        found = []
        with self._stack.database.read() as session:
            for kind, hit in self.injected:
                held = session.scalar(
                    sa.select(sa.func.max(SampleRow.finished_at)).where(SampleRow.id.in_(hit.waiting))
                )
                following = session.scalar(
                    sa.select(sa.func.min(SampleRow.finished_at)).where(SampleRow.finished_at > hit.at)
                )
                found.append(
                    Fault(
                        kind=kind,
                        at=hit.at,
                        in_hand=len(hit.in_hand),
                        progress_seconds=(following or float("inf")) - hit.at,
                        # a commit may have come between the look at the index and the blow
                        recovery_seconds=max(0.0, (held or float("inf")) - hit.at),
                    )
                )
        return found

    def longest_silence(self) -> float:
        """Seconds between two samples of the disturbed jobs that ended one after the other, at most."""
        statement = sa.select(SampleRow.finished_at).where(
            SampleRow.job_id.in_([job_id for _, job_id in self.jobs]), SampleRow.finished_at.is_not(None)
        )
        with self._stack.database.read() as session:
            times = [
                at for at in session.scalars(statement.order_by(SampleRow.finished_at)) if at is not None
            ]
        return max((after - before for before, after in pairwise(times)), default=float("inf"))

    def _inject(self, kind: str) -> Injected:
        strike, deadline = FAULTS[kind][0], time.monotonic() + PATIENCE_SECONDS
        while True:
            self._keep_busy()
            try:
                return strike(self._stack)
            except (NotMidWork, psutil.NoSuchProcess) as reason:  # the target may die of the fault before
                if time.monotonic() > deadline:
                    raise Stuck(f"{kind!r} found no target: {reason}") from None
                time.sleep(self._random.uniform(0.01, 0.05))

    def _submit(self, sampling: str) -> str:
        self._await(self._is_ready, "the API did not come back")
        changes = {"max_tokens": self._spec["sampling"]["max_tokens"]} | SAMPLINGS[sampling]
        return self._client.submit(self._spec | {"sampling": changes}).id

    def _keep_busy(self) -> None:
        while self._open([job_id for _, job_id in self.jobs]) < self._jobs_at_once:
            name = list(SAMPLINGS)[len(self.jobs) % len(SAMPLINGS)]
            self.jobs.append((name, self._submit(name)))

    def _has_progressed(self, seen: int) -> bool:
        self._keep_busy()
        return self._ended() > seen

    def _open(self, job_ids: Sequence[str]) -> int:
        """How many of these jobs have not ended."""
        with self._stack.database.read() as session:
            return sum(1 for status in _statuses(session, job_ids) if not status.is_terminal())

    def _ended(self) -> int:
        statement = sa.select(sa.func.count()).where(
            SampleRow.job_id.in_([job_id for _, job_id in self.jobs]), SampleRow.status.in_(ENDED)
        )
        with self._stack.database.read() as session:
            return int(session.execute(statement).scalar_one())

    def _is_ready(self) -> bool:
        try:
            return self._client.ready()
        except ActographError:
            return False

    def _await(self, condition: Callable[[], bool], otherwise: str) -> None:
        """Until `condition` holds; Stuck once no sample has ended for too long, or `up` is gone."""
        count, since = -1, time.monotonic()
        while not condition():
            if not self._stack.process.is_running() or self._stack.process.status() == psutil.STATUS_ZOMBIE:
                raise Stuck(f"{otherwise}: `actograph up` has ended by itself")
            if (ended := self._all_ended()) != count:
                count, since = ended, time.monotonic()
            if time.monotonic() - since > PATIENCE_SECONDS:
                raise Stuck(otherwise)
            time.sleep(0.03)

    def _all_ended(self) -> int:
        with self._stack.database.read() as session:
            statement = sa.select(sa.func.count()).where(SampleRow.status.in_(ENDED))
            return int(session.execute(statement).scalar_one())


def _statuses(session: Any, job_ids: Sequence[str]) -> Iterator[Any]:
    from storage import jobs

    for job_id in job_ids:
        status = jobs.status_of(session, job_id)
        if status is not None:
            yield status


@contextmanager
def service(arguments: argparse.Namespace, home: Path) -> Iterator[tuple[Stack, Client]]:
    environment = dict(os.environ) | {
        "ACTOGRAPH_LEASE_SECONDS": str(arguments.lease),
        "ACTOGRAPH_RECONCILE_SECONDS": str(RECONCILE_SECONDS),
        "ACTOGRAPH_SLICE_SECONDS": str(SLICE_SECONDS),
    }
    options = [
        f"--model=chaos={arguments.model}", f"--home={home}", "--port=0", f"--threads={arguments.threads}",
        f"--workers={arguments.workers}", f"--data-root={arguments.problems.resolve().parent}",
    ]  # fmt: skip
    database = Database(f"sqlite:///{home / 'actograph.db'}")
    with StackProcess(options, environment) as running, Client(running.url, retries=10) as client:
        (process,) = [p for p in psutil.Process().children() if f"--home={home}" in p.cmdline()]
        stack = Stack(
            home=home,
            port=int(running.url.rpartition(":")[2]),
            process=process,
            database=database,
            lease_seconds=arguments.lease,
        )
        try:
            yield stack, client
        finally:
            database.close()


def run(arguments: argparse.Namespace, home: Path) -> Report:
    """Raises Stuck."""
    spec = {
        "kind": "evaluation",
        "model": "chaos",
        "dataset": {"path": str(arguments.problems.resolve())},
        "limit": arguments.limit,
        "sampling": {"max_tokens": arguments.max_tokens},
        "capture": {"points": ["attn_in", "mlp_in"], "layers": "all"},
    }
    with service(arguments, home) as (stack, client):
        chaos = Chaos(stack, client, spec, seed=arguments.seed, jobs_at_once=arguments.jobs_at_once)
        expected = chaos.undisturbed()
        started = time.monotonic()
        chaos.disturb(arguments.faults)
        seconds = time.monotonic() - started
        got: list[tuple[str, Job, list[Sample]]] = [
            (name, client.job(job_id), list(client.samples(job_id))) for name, job_id in chaos.jobs
        ]
        faults, silence = chaos.faults(), chaos.longest_silence()
    audit, store = Audit(), open_store((home / "artifacts").as_uri())
    database = Database(f"sqlite:///{home / 'actograph.db'}")
    for name, job, samples in got:
        audit_job(audit, job=job, samples=samples, expected=expected[name], database=database, store=store)
    victims = {sample for _, hit in chaos.injected for sample in hit.in_hand}
    repeated = {s.id for _, _, samples in got for s in samples if s.attempts > 1}
    # a new home holds nothing from before, so that all that the index does not know is left over
    found = sweep_sessions(database, store, delete=False, older_than_seconds=SWEEP_ALL)
    leftovers = _leftovers(home)
    sweep_sessions(database, store, delete=True, older_than_seconds=SWEEP_ALL)
    store.sweep_staging(SWEEP_ALL)
    report = Report(
        faults=faults,
        audit=audit,
        jobs=len(got),
        seconds=seconds,
        longest_silence_seconds=silence,
        repeated_beyond_hand=len(repeated - victims),
        orphan_sessions=len(found.orphans) + len(found.unknown),
        staging_leftovers=leftovers,
        left_after_sweep=_left(database, store) + _leftovers(home),
    )
    database.close()
    return report


def _left(database: Database, store: ArtifactStore) -> int:
    found = sweep_sessions(database, store, delete=False, older_than_seconds=SWEEP_ALL)
    return len(found.orphans) + len(found.unknown)


def _leftovers(home: Path) -> int:
    return sum(1 for _ in (home / "artifacts").glob(f"*/{STAGING}*"))


def summary(report: Report) -> dict[str, dict[str, float]]:
    """Per kind of fault: how many, and how long recovery took."""
    rows = {}
    for kind in FAULTS:
        of_kind = [fault for fault in report.faults if fault.kind == kind]
        if of_kind:
            recovery = [fault.recovery_seconds for fault in of_kind]
            progress = [fault.progress_seconds for fault in of_kind]
            rows[kind] = {
                "count": len(of_kind),
                "in_hand_median": median(fault.in_hand for fault in of_kind),
                "progress_seconds_median": median(progress),
                "progress_seconds_max": max(progress),
                "recovery_seconds_median": median(recovery),
                "recovery_seconds_max": max(recovery),
            }
    return rows


def show(report: Report) -> None:
    table = Table("fault", "count", "next result s", "max", "recovery s", "max", "in hand", title="Faults")
    for kind, row in summary(report).items():
        table.add_row(
            kind,
            f"{row['count']:.0f}",
            f"{row['progress_seconds_median']:.2f}",
            f"{row['progress_seconds_max']:.2f}",
            f"{row['recovery_seconds_median']:.2f}",
            f"{row['recovery_seconds_max']:.2f}",
            f"{row['in_hand_median']:.0f}",
        )
    outcome = Table("", "", title="Outcome", show_header=False)
    outcome.add_row("faults, jobs, seconds", f"{len(report.faults)}, {report.jobs}, {report.seconds:.0f}")
    outcome.add_row("longest silence seconds", f"{report.longest_silence_seconds:.1f}")
    for name, value in asdict(report.audit).items():
        if name != "examples":
            outcome.add_row(name.replace("_", " "), f"{value:,.6g}")
    for name in ("repeated_beyond_hand", "orphan_sessions", "staging_leftovers", "left_after_sweep"):
        outcome.add_row(name.replace("_", " "), f"{getattr(report, name):,}")
    Console().print(table, outcome, *report.audit.examples[:20])


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, required=True, help="model folder")
    parser.add_argument("--problems", type=Path, required=True, help="JSONL of question and answer")
    parser.add_argument("--limit", type=int, default=None, help="problems per job; default: all")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--faults", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0, help="of the sequence of faults")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--jobs-at-once", type=int, default=1, help="open jobs; with more, recovery waits for a job's turn"
    )
    parser.add_argument("--lease", type=float, default=4.0, help="ACTOGRAPH_LEASE_SECONDS")
    parser.add_argument("--home", type=Path, help="a new folder to keep; default: a temporary one")
    parser.add_argument("--json", type=Path, help="write the result here")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="actograph-chaos-") as scratch:
        try:
            report = run(arguments, (arguments.home or Path(scratch) / "home").absolute())
        except Stuck as reason:
            print(f"FAILED: {reason}", file=sys.stderr)
            return 1
    show(report)
    if arguments.json:
        result = {
            "model": arguments.model.name,
            "seed": arguments.seed,
            "workers": arguments.workers,
            "jobs_at_once": arguments.jobs_at_once,
            "lease_seconds": arguments.lease,
            "reconcile_seconds": RECONCILE_SECONDS,
            "clean": report.is_clean(),
            "by_kind": summary(report),
            **asdict(report),
        }
        wrong = 0.0 if report.is_clean() else 1.0
        name = f"runs with a sample lost, doubled or different, {len(report.faults)} faults"
        write_result(arguments.json, result, [Mark(name=name, measured=wrong, at_most=0.0)])
    return 0 if report.is_clean() else 1


if __name__ == "__main__":
    sys.exit(main())
