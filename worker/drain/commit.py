"""Commit of a batch's outcomes to the index, under their leases."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from actograph.contract.errors import CaptureFailed, JobEnded, ServiceUnavailable
from storage.index.database import Database
from storage.queue import commit, leases, workers
from storage.queue.commit import Ended, SampleResult
from worker.sample.outcome import Interrupted, Outcome
from worker.sample.provenance import Provenance


@dataclass(frozen=True, kw_only=True)
class Stored:
    """The result of a commit."""

    #: ids of the sessions whose files must be removed
    lost_sessions: Sequence[str]
    #: whether any sample has ended
    is_any: bool
    #: the store's error, if samples were given back because of it
    outage: ServiceUnavailable | None
    #: True if every job of the batch has ended with it
    is_end: bool


def store(
    database: Database,
    outcomes: Sequence[Outcome],
    provenance: Provenance | None,
    seconds: float,
    *,
    worker_id: str,
    idle_model: str | None,
    give_up: Callable[[], bool],
) -> Stored:
    """Commit a batch; retry while the database is unavailable.

    A sample is given back if the store could not take it, if it was interrupted, or if its job has ended.

    Args:
        seconds: duration of the batch.
        idle_model: the worker's model. If given, the worker is shown as idle once every job of the batch has
            ended.

    Raises:
        DBAPIError: the database is unavailable and `give_up` returned True.
    """
    away = [o for o in outcomes if isinstance(o.error, ServiceUnavailable | JobEnded | Interrupted)]
    ended = [_ended(o, provenance) for o in outcomes if o not in away]
    recorded = {o.lease.id: o.recorded.session_id for o in outcomes if o.recorded}

    def attempt(session: Session) -> Stored:
        leases.lock_jobs(session, [o.lease for o in outcomes])
        leases.give_back(session, [o.lease for o in away])
        done = commit.commit(session, ended, seconds=seconds)
        is_end = {o.lease.job_id for o in outcomes} == set(done.ended_jobs)
        if is_end and idle_model is not None:
            # in the same transaction: small jobs would notice a second one
            workers.set_idle(session, worker_id, idle_model)
        return Stored(
            lost_sessions=[recorded[sample_id] for sample_id in done.lost if sample_id in recorded],
            is_any=bool(done.kept),
            outage=next((o.error for o in away if isinstance(o.error, ServiceUnavailable)), None),
            is_end=is_end,
        )

    return database.insist(attempt, give_up=give_up)


def _ended(outcome: Outcome, provenance: Provenance | None) -> Ended:
    prompt, generation, scores = outcome.prompt, outcome.generation, outcome.scores
    if outcome.error is not None:
        return Ended(lease=outcome.lease, error=outcome.error, prompt=prompt.text if prompt else None)
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
    new = None
    if recorded is not None and provenance is not None:
        verdict = next(iter(scores.values()), None)
        new = recorded.as_new(outcome.lease, provenance, verdict.value == 1.0 if verdict else None)
    return Ended(lease=outcome.lease, result=result, session=new)
