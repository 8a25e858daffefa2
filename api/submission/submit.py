"""Check a spec of any kind, and insert the checked job into the index."""

from collections.abc import Callable
from operator import itemgetter
from typing import TypeVar

from sqlalchemy.orm import Session

from actograph.contract.chat.chat_job import ChatJobSpec
from actograph.contract.specs import CaptureJobSpec, ExtractSpec
from api.dependencies import Services
from api.submission import capture, chat, datasets, evaluation, extract, steps
from api.submission.steps import Spec, Submission
from storage.index.database import Database
from storage.jobs import jobs
from storage.queue import pins
from storage.submission import bulk_insert
from storage.tables.models import JobRow

T = TypeVar("T")


def check(services: Services, spec: Spec, owner: str | None) -> Submission:
    """Run the three steps of the job's kind.

    Raises:
        UnknownModel, UnknownHook, ContextLengthExceeded, InvalidDataset, InvalidRequest
    """
    if isinstance(spec, CaptureJobSpec):
        return capture.expand(capture.check(capture.resolve(services, spec, owner)))
    if isinstance(spec, ChatJobSpec):
        return chat.expand(chat.check(chat.resolve(services, spec, owner)))
    if isinstance(spec, ExtractSpec):
        return extract.expand(extract.check(extract.resolve(services, spec, owner)))
    return evaluation.expand(evaluation.check(evaluation.resolve(services, spec, owner)))


def insert(
    database: Database,
    submission: Submission,
    finish: Callable[[Session, JobRow], T],
    *,
    renew: Callable[[Session], None] = lambda session: None,
) -> T:
    """Insert the job and its samples, and return the result of `finish`. The caller wakes the workers.

    A large job takes several transactions. `finish` runs in the last one, which makes the job visible;
    `renew` runs in the others.

    Raises:
        InvalidDataset: an uploaded file was deleted since the check.
        InvalidRequest: a stored vector was deleted since the check.
    """

    def publish(session: Session, row: JobRow) -> T:
        _keep_named(session, submission)
        return finish(session, row)

    return bulk_insert.insert_job(
        database,
        submission.samples(),
        create=lambda session: _create(session, submission),
        publish=publish,
        renew=renew,
    )


def _keep_named(session: Session, submission: Submission) -> None:
    """Prevent the deletion of the job's files and vectors. Raises InvalidDataset or InvalidRequest."""
    for field, file_id in sorted(submission.uploads, key=itemgetter(1)):
        datasets.require_upload(session, file_id, field, keep=True)
    steps.stored_vectors(session, submission.spec, keep=True)


def _create(session: Session, submission: Submission) -> JobRow:
    _keep_named(session, submission)
    spec = submission.spec
    return jobs.create(
        session,
        kind=spec.kind,
        model=spec.model,
        spec=spec,
        hooks=submission.hooks,
        total=submission.total,
        owner=submission.owner,
        pinned=pins.of_structure(submission.structure),
    )
