"""The way of a body from the request to its job in the index: resolve, check, expand, admit, insert.

The first three are steps of the body's kind, see `api/kinds`. `estimate.admit` checks memory, disk and
quotas; `storage.submission.bulk_insert` stores the job.
"""

from typing import Any

from actograph.contract.errors import ServiceUnavailable
from api import estimate
from api.dependencies import Services
from api.kinds import KINDS
from api.submission import Submission
from storage.jobs import jobs
from storage.jobs.request_keys import RequestKey
from storage.queue import pause
from storage.submission import bulk_insert
from storage.tables.models import JobRow


def submit(
    services: Services, body: Any, owner: str, *, key: RequestKey | None = None, starts_now: bool = False
) -> JobRow:
    """Check a body, insert its job and wake a worker.

    Args:
        body: a spec or a chat's request; its `kind` is one of `KINDS`.
        starts_now: refuse a job that would wait for an unknown time.

    Raises:
        UnknownModel, UnknownHook, ContextLengthExceeded, InvalidDataset, InvalidRequest
        InsufficientResources, IdempotencyInFlight
        ServiceUnavailable: no live worker can serve the model, or the queue is paused.
    """
    submission = check(services, body, owner)
    estimate.admit(services, submission)
    if starts_now:
        _require_start(services, submission)
    return insert(services, submission, key=key)


def check(services: Services, body: Any, owner: str) -> Submission[Any]:
    """Resolve, check and expand a body. Raises the errors of `submit` except those for lack of resources."""
    kind = KINDS[body.kind]
    spec = kind.resolve(services, body)
    return kind.expand(services, kind.check(services, spec, owner))


def _require_start(services: Services, submission: Submission[Any]) -> None:
    """Raises ServiceUnavailable if no worker can serve the job, or it is paused."""
    if submission.waiting_reason is not None:
        raise ServiceUnavailable(submission.waiting_reason)
    with services.database.read() as session:
        held = pause.active(session, services.store, services.settings)
    reason = pause.in_words(held) or submission.quotas.owner_pause(submission.owner)
    if reason is not None:
        raise ServiceUnavailable(f"no job starts now: {reason}")


def insert(
    services: Services,
    submission: Submission[Any],
    *,
    key: RequestKey | None = None,
    batch_id: str | None = None,
) -> JobRow:
    """Insert the job and its samples, and wake a worker. Raises the errors of `bulk_insert.insert_job`."""
    spec, structure, pinned = submission.spec, submission.structure, submission.pinned
    if pinned is None and structure is not None:
        pinned = jobs.pin_to(structure, spec.engine)
    row = bulk_insert.insert_job(
        services.database,
        spec,
        submission.samples(),
        batch_id=batch_id,
        hooks=submission.hooks,
        total=submission.total,
        owner=submission.owner,
        pinned=pinned,
        request_key=key,
    )
    # without the broker an idle worker finds the job
    services.broker.wake(row.model)
    return row
