"""Commit of a batch's outcomes to the index, under their leases."""

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from actograph.contract.errors import CaptureFailed, JobEnded, LeaseLost, ServiceUnavailable
from actograph.contract.resources import SampleStatus
from storage.index import counters
from storage.index.counters import Counter
from storage.index.database import Database, is_away
from storage.jobs import control, jobs
from storage.queue import commit as commits
from storage.queue import leases, workers
from storage.queue.commit import SampleResult
from storage.sessions import sessions
from storage.sessions.sessions import NewSession
from storage.tables.models import JobRow
from worker.sample.outcome import Interrupted, Outcome
from worker.sample.provenance import Provenance
from worker.sample.unforeseen import unforeseen

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Committed:
    """Outcomes that were committed, and those that were not."""

    kept: Sequence[Outcome]
    #: lost leases; their recorded files must be removed
    lost: Sequence[Outcome]
    #: the store's error, if samples were given back because of it
    outage: ServiceUnavailable | None
    #: True if every job of the batch has ended with it
    is_end: bool = False


def commit_each(
    database: Database,
    outcomes: Sequence[Outcome],
    provenance: Provenance | None,
    seconds: float,
    *,
    worker_id: str,
    idle_model: str | None,
    give_up: Callable[[], bool],
) -> Committed:
    """Commit a batch; retry while the database is unavailable.

    If the index refuses a result, each sample is committed alone, and the faulty one fails.

    Args:
        idle_model: the worker's model. If given, the worker is shown as idle once every job of the batch has
            ended.

    Raises:
        DBAPIError: the database is unavailable and `give_up` returned True.
    """

    def store(session: Session) -> Committed:
        done = commit_batch(session, outcomes, provenance, seconds, worker_id=worker_id)
        if done.is_end and idle_model is not None:
            # in the same transaction: small jobs would notice a second one
            workers.set_idle(session, worker_id, idle_model)
        return done

    def again(part: Sequence[Outcome]) -> Committed:
        return commit_each(
            database,
            part,
            provenance,
            seconds / len(outcomes),
            worker_id=worker_id,
            idle_model=idle_model,
            give_up=give_up,
        )

    try:
        return database.insist(store, give_up=give_up)
    except Exception as error:
        if isinstance(error, DBAPIError) and is_away(error):
            raise
        if len(outcomes) > 1:
            parts = [again([outcome]) for outcome in outcomes]
            return Committed(
                kept=[outcome for part in parts for outcome in part.kept],
                lost=[outcome for part in parts for outcome in part.lost],
                outage=next((part.outage for part in parts if part.outage is not None), None),
                is_end=parts[-1].is_end,
            )
        (outcome,) = outcomes
        if outcome.error is not None:
            raise  # the sample has no result that could be at fault
        reason = unforeseen(error, f"while the result of sample {outcome.lease.id} was stored")
        failed = again([Outcome(lease=outcome.lease, error=reason)])
        return replace(failed, lost=[outcome])  # its files are removed


def commit_batch(
    session: Session,
    outcomes: Sequence[Outcome],
    provenance: Provenance | None,
    seconds: float = 0.0,
    *,
    worker_id: str = counters.NOBODY,
) -> Committed:
    """Store all results of a batch. Safe to repeat if the answer to the first commit was lost.

    A sample is given back if the store could not take it, if it was interrupted, or if its job has ended.

    Args:
        seconds: duration of the batch.
        worker_id: worker whose counters increase.
    """
    leases.lock_jobs(session, [o.lease for o in outcomes])
    done = [
        _commit_of_job(session, job_id, [o for o in outcomes if o.lease.job_id == job_id], provenance)
        for job_id in sorted({o.lease.job_id for o in outcomes})
    ]
    kept = [outcome for part in done for outcome in part.kept]
    if kept:
        kind = session.get_one(JobRow, kept[0].lease.job_id).kind
        counters.add(session, worker_id, tally(kind, kept, seconds))
    return Committed(
        kept=kept,
        lost=[outcome for part in done for outcome in part.lost],
        outage=next((part.outage for part in done if part.outage is not None), None),
        is_end=all(part.is_end for part in done),
    )


def _commit_of_job(
    session: Session, job_id: str, outcomes: Sequence[Outcome], provenance: Provenance | None
) -> Committed:
    away = [o for o in outcomes if isinstance(o.error, ServiceUnavailable | JobEnded | Interrupted)]
    leases.give_back(session, [o.lease for o in away])
    committed = commits.committed(session, [o.lease for o in outcomes])
    ended = [o for o in outcomes if o not in away and o.lease.id not in committed]
    recorded: list[NewSession] = []
    lost = [o for o in ended if not _commit(session, o, provenance, recorded)]
    sessions.insert(session, *recorded)
    kept = [o for o in ended if o not in lost]
    if kept:
        failed = sum(o.error is not None for o in kept)
        jobs.count_finished(session, job_id, completed=len(kept) - failed, failed=failed)
        control.follow_failures(session, job_id, [o.error for o in kept])
    is_end = False
    if kept or (away and jobs.status_of(session, job_id) is not None):
        is_end = jobs.end_if_done(session, job_id).is_terminal()
    reasons = [o.error for o in away if isinstance(o.error, ServiceUnavailable)]
    return Committed(kept=kept, lost=lost, outage=reasons[0] if reasons else None, is_end=is_end)


def tally(kind: str, kept: Sequence[Outcome], seconds: float) -> dict[Counter, float]:
    """Counter increments for one batch."""
    counts: dict[Counter, float] = defaultdict(float)
    counts[Counter("batches", kind)] = 1
    counts[Counter("batch_seconds", kind)] = seconds
    for outcome in kept:
        status = SampleStatus.COMPLETED if outcome.error is None else SampleStatus.FAILED
        counts[Counter("samples", kind, status)] += 1
        if outcome.error is None:
            counts[Counter("prompt_tokens", kind)] += outcome.prompt_tokens
            counts[Counter("generated_tokens", kind)] += outcome.generated_tokens
        if outcome.error is None and outcome.recorded is not None:
            counts[Counter("sessions_written", kind)] += 1
            counts[Counter("session_rows_written", kind)] += outcome.recorded.rows
            counts[Counter("session_bytes_written", kind)] += sum(f.bytes for f in outcome.recorded.files)
    return counts


def _commit(
    session: Session, outcome: Outcome, provenance: Provenance | None, recorded: list[NewSession]
) -> bool:
    """Write one sample's result under its lease, and append its session; False if the lease is lost."""
    try:
        if outcome.error is not None:
            text = outcome.prompt.text if outcome.prompt else None
            commits.fail(session, outcome.lease, outcome.error, text)
            return True
        _complete(session, outcome, provenance, recorded)
    except LeaseLost as error:
        logger.warning("%s", error)
        return False
    return True


def _complete(
    session: Session, outcome: Outcome, provenance: Provenance | None, recorded_sessions: list[NewSession]
) -> None:
    prompt, generation, scores = outcome.prompt, outcome.generation, outcome.scores
    if prompt is None or generation is None or scores is None:
        raise CaptureFailed(f"sample {outcome.lease.id} has neither a result nor an error")
    recorded = outcome.recorded
    tool_use, messages = outcome.tools or (None, ())
    result = SampleResult(
        prompt=prompt.text,
        completion=outcome.completion,
        finish_reason=generation.finish_reason,
        prompt_tokens=outcome.prompt_tokens,
        generated_tokens=outcome.generated_tokens,
        scores=scores,
        session_id=recorded.session_id if recorded else None,
        tool_use=tool_use,
        messages=messages,
        logprobs=outcome.logprobs,
    )
    commits.complete(session, outcome.lease, result)
    if recorded is not None and provenance is not None:
        verdict = next(iter(scores.values()), None)
        correct = verdict.value == 1.0 if verdict else None
        recorded_sessions.append(recorded.as_new(outcome.lease, provenance, correct))
