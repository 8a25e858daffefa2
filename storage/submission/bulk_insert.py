"""Insert the samples of a large job slice by slice.

One transaction for 200,000 samples would block every other writer of a SQLite index for seconds. So each
slice is a transaction of its own. A submitted job is unpublished until its last slice, see
`storage.index.visible`: no list shows it, and no worker claims its samples. Each slice gives it more time. If
the process dies meanwhile, the reaper removes the incomplete job.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Unpack

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from actograph.contract.analyses import AnalysisSpec
from actograph.contract.errors import ServiceUnavailable
from storage import samples
from storage.index import notices, visible
from storage.index.database import Database, changed, now
from storage.jobs import batches, jobs
from storage.jobs.jobs import JobFields, Spec
from storage.jobs.request_keys import first_wins
from storage.samples import NewSample
from storage.submission import named
from storage.tables.models import JobRow

#: most samples of one transaction, which takes about 50 ms
SLICE = 1000
#: about the most characters of prompts and answers in one transaction
SLICE_CHARACTERS = 4 << 20
#: an incomplete job is removed if no slice arrives for so long
ABANDONED_SECONDS = 300.0


def insert_job(
    database: Database,
    spec: Spec | AnalysisSpec,
    new: Iterable[NewSample],
    *,
    batch_id: str | None = None,
    **fields: Unpack[JobFields],
) -> JobRow:
    """Insert a checked job with its samples. The last transaction, the only one of a small job, shows it.

    Args:
        batch_id: the batch that begins with this job.

    Raises:
        Conflict: the batch has begun already, or was cancelled.
        IdempotencyInFlight: another request with this key was faster.
        InvalidDataset, InvalidRequest: a file or vector was deleted since the check.
        ServiceUnavailable: it took so long that the job was removed as abandoned.
    """

    rest = iter(new)
    following, after = _slice(rest), _slice(rest)
    with database.write() as session:
        named.keep_all(session, spec)
        with first_wins():
            row = jobs.create(session, spec, **fields)
        samples.insert(session, row.id, following)
        if not after:
            _begin_batch(session, batch_id, row)
            return row
        hidden = sa.update(JobRow).where(JobRow.id == row.id)
        session.execute(hidden.values(visible.unpublished(now(session), ABANDONED_SECONDS)))
    try:
        count = len(following)
        while after:
            following, after = after, _slice(rest)
            with database.write() as session:
                _require(session, row.id, visible.unpublished(now(session), ABANDONED_SECONDS))
                samples.insert(session, row.id, following, first=count)
                count += len(following)
        with database.write() as session:
            named.keep_all(session, spec)
            _begin_batch(session, batch_id, row)
            _require(session, row.id, visible.PUBLISHED)
            notices.note(session, row.model)
    except Exception:
        # otherwise the reaper waits until its time has passed
        with suppress(SQLAlchemyError), database.write() as session:
            _change_hidden(session, row.id, visible.deleted(now(session)) | {"idempotency_key": None})
        raise
    return row


def _begin_batch(session: Session, batch_id: str | None, row: JobRow) -> None:
    if batch_id is not None:
        batches.begin(session, batch_id, row)


def _slice(rest: Iterator[NewSample]) -> list[NewSample]:
    """The samples of the next transaction; fewer than SLICE if they are long."""
    found: list[NewSample] = []
    characters = 0
    for sample in islice(rest, SLICE):
        found.append(sample)
        characters += sum(len(value) for value in sample.input.values() if isinstance(value, str))
        if characters >= SLICE_CHARACTERS:
            break
    return found


def insert_dataset(database: Database, job_id: str, new: Sequence[NewSample]) -> None:
    """Insert the samples of a dataset that the worker has read, and then the job's total.

    Several workers may do this at once: each slice begins after the last stored sample.
    """
    is_complete = False
    while not is_complete:
        with database.write() as session:
            row = jobs.lock(session, job_id)
            if row.is_expanded or row.status not in jobs.ACTIVE:
                return
            begin = samples.next_position(session, job_id)
            samples.insert(session, job_id, new[begin : begin + SLICE], first=begin)
            is_complete = begin + SLICE >= len(new)
            if is_complete:
                jobs.set_total(session, job_id, len(new))
                jobs.end_if_done(session, job_id)


def _change_hidden(session: Session, job_id: str, values: visible.Values) -> bool:
    """Change a job in the making. False if it was published, or is being removed."""
    with visible.hidden_too(session):
        hidden = sa.update(JobRow).where(JobRow.id == job_id, visible.may_be_published(JobRow, now(session)))
        return changed(session.execute(hidden.values(values))) > 0


def _require(session: Session, job_id: str, values: visible.Values) -> None:
    """Give a job in the making more time, or publish it.

    Raises:
        ServiceUnavailable: its time has passed, so the reaper removes the job.
    """
    if not _change_hidden(session, job_id, values):
        raise ServiceUnavailable("the job took too long to store and was deleted; submit it again")
