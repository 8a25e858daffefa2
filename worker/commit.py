"""What a unit's samples came to, written into the index under their leases."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy.orm import Session

from actograph.contract.errors import CaptureFailed, JobEnded, LeaseLost, ServiceUnavailable
from storage import forecast, job_control, jobs, samples, sessions
from storage.samples import SampleResult
from worker.outcome import Outcome
from worker.recording import Provenance

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Committed:
    """What did not come into the index."""

    #: somebody else holds the sample; what was recorded is to be removed
    lost: Sequence[Outcome]
    #: why samples were given back, None where none was: the store was away
    outage: ServiceUnavailable | None


def commit_unit(
    session: Session,
    outcomes: Sequence[Outcome],
    provenance: Provenance | None,
    seconds: float = 0.0,
) -> Committed:
    """Store all results of a unit; may be run again where the first commit's answer was lost.

    `seconds` is what the unit took this worker, by which the end of its jobs is foretold.
    A sample that the store could not take, or whose job has ended, is given back: nothing is wrong with it.
    """
    samples.lock_jobs(session, [o.lease for o in outcomes])
    done = [
        _commit_of_job(
            session,
            job_id,
            own := [o for o in outcomes if o.lease.job_id == job_id],
            provenance,
            seconds * len(own) / len(outcomes),
        )
        for job_id in sorted({o.lease.job_id for o in outcomes})
    ]
    return Committed(
        lost=[outcome for part in done for outcome in part.lost],
        outage=next((part.outage for part in done if part.outage is not None), None),
    )


def _commit_of_job(
    session: Session, job_id: str, outcomes: Sequence[Outcome], provenance: Provenance | None, seconds: float
) -> Committed:
    away = [o for o in outcomes if isinstance(o.error, ServiceUnavailable | JobEnded)]
    samples.release(session, [o.lease for o in away])
    ended = [o for o in outcomes if o not in away and not samples.is_committed(session, o.lease)]
    lost = [o for o in ended if not _commit(session, o, provenance)]
    samples.give_back(session, [o.lease for o in lost])
    kept = [o for o in ended if o not in lost]
    if kept:
        failed = sum(o.error is not None for o in kept)
        forecast.measure(session, job_id, samples=len(kept), seconds=seconds)
        jobs.count_finished(session, job_id, completed=len(kept) - failed, failed=failed)
        job_control.follow_failures(session, job_id, [o.error for o in kept])
    if kept or (away and jobs.status_of(session, job_id) is not None):
        jobs.end_if_done(session, job_id)
    reasons = [o.error for o in away if isinstance(o.error, ServiceUnavailable)]
    return Committed(lost=lost, outage=reasons[0] if reasons else None)


def _commit(session: Session, outcome: Outcome, provenance: Provenance | None) -> bool:
    """Write one sample's result under its lease; False where the lease is lost."""
    try:
        if outcome.error is not None:
            text = outcome.prompt.text if outcome.prompt else None
            samples.fail(session, outcome.lease, outcome.error, text)
            return True
        _complete(session, outcome, provenance)
    except LeaseLost as error:
        logger.warning("%s", error)
        return False
    return True


def _complete(session: Session, outcome: Outcome, provenance: Provenance | None) -> None:
    prompt, generation, scores = outcome.prompt, outcome.generation, outcome.scores
    if prompt is None or generation is None or scores is None:
        raise CaptureFailed(f"sample {outcome.lease.id} has neither a result nor an error")
    recorded = outcome.recorded
    tool_use, messages = outcome.tools or (None, ())
    conversation = outcome.conversation
    result = SampleResult(
        prompt=prompt.text,
        completion=outcome.completion,
        finish_reason=generation.finish_reason,
        prompt_tokens=conversation.prompt_tokens if conversation else len(generation.prompt_ids),
        generated_tokens=outcome.chosen_tokens,
        scores=scores,
        session_id=recorded.session_id if recorded else None,
        tool_use=tool_use,
        messages=messages,
    )
    samples.complete(session, outcome.lease, result)
    if recorded is not None and provenance is not None:
        verdict = next(iter(scores.values()), None)
        correct = verdict.value == 1.0 if verdict else None
        new = recorded.as_new(outcome.lease, provenance, correct)
        sessions.insert(session, new)
