"""Insert a checked job into the index."""

from collections.abc import Callable
from operator import itemgetter
from typing import TypeVar

from sqlalchemy.orm import Session

from api.submission import interventions
from api.submission.submissions import Submission, require_upload
from storage.index.database import Database
from storage.jobs import jobs
from storage.queue import job_pins
from storage.submission import bulk_insert
from storage.tables.models import JobRow

T = TypeVar("T")


def insert(
    database: Database,
    submission: Submission,
    finish: Callable[[Session, JobRow], T],
    *,
    renew: Callable[[Session], None] = lambda session: None,
) -> T:
    """Insert the job and its samples, and return the result of `finish`; the caller wakes the workers.

    A large job takes several transactions. `finish` runs in the last one, which makes the job visible, and
    `renew` in those before.

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
    """Hold off the deletion of the files and vectors of a job. Raises InvalidDataset, InvalidRequest."""
    for field, file_id in sorted(submission.uploads, key=itemgetter(1)):
        require_upload(session, file_id, field, keep=True)
    interventions.require_vectors(session, submission.spec)


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
        pinned=job_pins.of_structure(submission.structure),
    )
