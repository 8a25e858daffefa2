"""Drains GSM8K with capture while everything fails at random, and compares with an undisturbed run.

    python -m bench.chaos --stack sqlite-files|postgres-s3 --model DIR --problems FILE.jsonl
                          [--faults N] [--minutes M] [--seed S] [--json FILE]

`actograph up` first runs the job greedily and sampled, undisturbed. Then the same two jobs are run again
and again until N faults have hit or M minutes are over, each fault at a random moment at which samples
were in hand and finished ones had been seen since the fault before; the last job ends by itself. Workers,
API and broker are killed, the broker restarted and emptied, a worker stopped past its lease, the disk
filled, a worker's clock shifted by a minute; on `postgres-s3` Postgres is restarted and killed and S3
answers 503, hangs up, breaks off or is slow as well. Recovery is the time from a fault to the end of the
last sample that anybody held when it struck; faults may overlap.

Beside the faults come changes that no running job may notice: the model is reloaded plainly, in bfloat16 and
with another savepoint, a half-drained job is deleted and the API killed meanwhile, the broker stays down for
a minute, one worker and the API are replaced.

Exit status 1 where anything is lost, duplicated, unreadable, different, of mixed identity or not deleted, was
run again without having been in the hand of a victim, or is left over by the reaper, and where the store has
a session that the index does not know.
"""

import argparse
import os
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import sqlalchemy as sa

from actograph.contract.resources import Job, Sample
from bench.chaos.mirror import local_copy
from bench.chaos.report import Report, marks, show, summary
from bench.chaos.run import Chaos
from bench.chaos.service import RECONCILE_SECONDS, Servers, servers, service
from bench.marks import write_result
from storage.index import visible
from storage.sessions.sessions import SessionFilter, ids
from storage.tables.models import SessionRow
from storage.upkeep import reaper
from tests.support.chaos.audit import Audit, audit_job
from tests.support.chaos.changes import MODEL, SAVEPOINT
from tests.support.chaos.faults import FAULTS
from tests.support.chaos.stack import Stuck
from tests.support.samples import age_removals
from tests.support.servers import Unavailable

SWEEP_ALL = -60.0


def run(arguments: argparse.Namespace, behind: Servers) -> Report:
    """Raises Stuck."""
    spec: dict[str, Any] = {
        "kind": "evaluation",
        "model": MODEL,
        "dataset": {"path": str(arguments.problems.resolve())},
        "limit": arguments.limit,
        "sampling": {"max_tokens": arguments.max_tokens},
        "capture": {"points": ["attn_in", "mlp_in"], "layers": "all", "hooks": [SAVEPOINT]},
    }
    with service(
        behind,
        spec=spec,
        model=arguments.model,
        data=arguments.problems.resolve().parent,
        workers=arguments.workers,
        threads=arguments.threads,
        lease_seconds=arguments.lease,
        broker_down_seconds=arguments.broker_down,
    ) as (stack, client):
        chaos = Chaos(
            stack,
            client,
            spec,
            {kind: FAULTS[arguments.stack][kind] for kind in arguments.kind or FAULTS[arguments.stack]},
            seed=arguments.seed,
            jobs_at_once=arguments.jobs_at_once,
            gap_seconds=arguments.gap,
        )
        expected = chaos.undisturbed()
        started = time.monotonic()
        chaos.disturb(arguments.faults, arguments.minutes * 60)
        seconds = time.monotonic() - started
        got: list[tuple[str, Job, list[Sample]]] = [
            (name, client.jobs.get(job_id), list(client.jobs.get(job_id).samples()))
            for name, job_id in chaos.jobs
        ]
        faults, silence = chaos.faults(), chaos.longest_silence()
        audit, database, store = Audit(), behind.database, behind.store
        audit.note("undeleted", "rows of deleted jobs or deletions that wait", stack.undeleted())
    near = local_copy(database, store, behind.home / "mirror")
    for name, job, samples in got:
        audit_job(audit, job=job, samples=samples, expected=expected[name], database=database, store=near)
    victims = {sample for _, hit in chaos.injected for sample in hit.in_hand}
    repeated = {s.id for _, _, samples in got for s in samples if s.losses > 0}
    with database.read() as session, visible.hidden_too(session):
        indexed = set(session.scalars(sa.select(SessionRow.id)))
    unknown, leftovers = len(_stored(behind) - indexed), behind.leftovers()
    # as a day later
    age_removals(database)
    reaper.reap(database, store)
    store.sweep_staging(SWEEP_ALL)
    with database.read() as session:
        shown = set(ids(session, SessionFilter()))
    return Report(
        stack=arguments.stack,
        lease_seconds=arguments.lease,
        faults=faults,
        audit=audit,
        jobs=len(got),
        deleted_jobs=len(stack.deleted),
        outages=stack.outages,
        seconds=seconds,
        longest_silence_seconds=silence,
        repeated_beyond_hand=len(repeated - victims),
        unknown_sessions=unknown,
        staging_leftovers=leftovers,
        left_by_reaper=len(_stored(behind) - shown) + behind.leftovers(),
    )


def _stored(behind: Servers) -> set[str]:
    """Ids of sessions in the store."""
    return {prefix.id for prefix in behind.store.list_prefixes("sessions")}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.chaos",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--stack", choices=list(FAULTS), default="sqlite-files")
    parser.add_argument("--model", type=Path, required=True, help="model folder")
    parser.add_argument("--problems", type=Path, required=True, help="JSONL of question and answer")
    parser.add_argument("--limit", type=int, default=None, help="problems per job; default: all")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--faults", type=int, default=50)
    kinds = sorted({kind for of_stack in FAULTS.values() for kind in of_stack})
    parser.add_argument("--kind", action="append", choices=kinds, help="these alone; default: all")
    parser.add_argument("--minutes", type=float, default=60.0, help="inject no fault after so long")
    parser.add_argument(
        "--gap", type=float, default=1.5, help="longest pause before a fault; recovery is clearest from 60 on"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the sequence of faults")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--jobs-at-once", type=int, default=1, help="open jobs; with more, recovery waits for a job's turn"
    )
    parser.add_argument("--lease", type=float, default=4.0, help="ACTOGRAPH_LEASE_SECONDS")
    parser.add_argument(
        "--broker-down", type=float, default=60.0, help="seconds for which the broker stays down"
    )
    parser.add_argument("--home", type=Path, help="a new folder to keep; default: a temporary one")
    parser.add_argument("--json", type=Path, help="write the result here")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="actograph-chaos-") as scratch:
        home = (arguments.home or Path(scratch) / "home").absolute()
        try:
            with servers(arguments.stack, home) as behind:
                report = run(arguments, behind)
        except (Stuck, Unavailable) as reason:
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
        write_result(arguments.json, result, marks(report))
    return 0 if report.is_clean() else 1


if __name__ == "__main__":
    sys.exit(main())
