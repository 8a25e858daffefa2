"""Insert the samples of a large job slice by slice.

One transaction for 200,000 samples would hold up every other writer of a SQLite index for seconds. So each
slice is a transaction of its own. A submitted job stays hidden until its last slice: no list shows it, and no
worker claims its samples. If the process dies meanwhile, the reconciler removes the incomplete job.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from actograph.contract.errors import ServiceUnavailable
from actograph.contract.resources import JobStatus
from storage import samples
from storage.index.database import Database, changed, now
from storage.jobs import jobs
from storage.jobs.jobs import DISCARDED, SUBMITTING
from storage.samples import NewSample
from storage.tables.models import JobRow, SampleRow

T = TypeVar("T")

#: samples of one transaction, which takes some 50 ms
SLICE = 1000
#: an incomplete job without a new slice for so long is abandoned
ABANDONED_SECONDS = 300.0


def insert_job(
    database: Database,
    new: Iterable[NewSample],
    *,
    create: Callable[[Session], JobRow],
    publish: Callable[[Session, JobRow], T],
    renew: Callable[[Session], None] = lambda session: None,
) -> T:
    """Insert a job with its samples. Returns the result of `publish`.

    Args:
        create: inserts the job, in the first transaction.
        publish: runs in the transaction that makes the job visible, the only one of a small job.
        renew: runs in each transaction before that.

    Raises:
        ServiceUnavailable: this took so long that the reconciler removed the job.
    """
    rest = iter(new)
    following, after = _slice(rest), _slice(rest)
    if not after:
        with database.write() as session:
            row = create(session)
            samples.insert(session, row.id, following)
            return publish(session, row)
    with database.write() as session:
        row = create(session)
        _hide(session, row.id)
        samples.insert(session, row.id, following)
    try:
        count = len(following)
        while after:
            following, after = after, _slice(rest)
            with database.write() as session:
                _require(session, row.id, served_at=now(session))
                samples.insert(session, row.id, following, first=count)
                count += len(following)
                renew(session)
        with database.write() as session:
            published = publish(session, row)
            _require(session, row.id, status=JobStatus.QUEUED, served_at=None)
    except Exception:
        # otherwise the reconciler does it
        with suppress(SQLAlchemyError):
            discard(database, row.id)
        raise
    return published


def _slice(rest: Iterator[NewSample]) -> list[NewSample]:
    """The samples of the next transaction; fewer than SLICE if they are long."""
    found: list[NewSample] = []
    characters = 0
    for sample in islice(rest, SLICE):
        found.append(sample)
        characters += samples.characters_of(sample)
        if characters >= samples.INSERT_CHARACTERS:
            break
    return found


def insert_dataset(database: Database, job_id: str, new: Sequence[NewSample]) -> None:
    """Insert the samples of a dataset that the worker has read, and then the job's total.

    Several workers may do this at once: each slice begins after the last sample that is there.
    """
    is_complete = False
    while not is_complete:
        with database.write() as session:
            row = jobs.lock(session, job_id)
            if row.total is not None or row.status not in jobs.ACTIVE:
                return
            begin = samples.next_position(session, job_id)
            samples.insert(session, job_id, new[begin : begin + SLICE], first=begin)
            is_complete = begin + SLICE >= len(new)
            if is_complete:
                jobs.set_total(session, job_id, len(new))


def discard(database: Database, job_id: str) -> None:
    """Remove a job that is not complete, slice by slice."""
    with database.write() as session:
        hidden = JobRow.status.in_((SUBMITTING, DISCARDED))
        # its submitter, should it still be at work, adds no further slice
        session.execute(sa.update(JobRow).where(JobRow.id == job_id, hidden).values(status=DISCARDED))
    discarded = sa.exists().where(JobRow.id == job_id, JobRow.status == DISCARDED)
    some = sa.select(SampleRow.id).where(SampleRow.job_id == job_id, discarded).limit(SLICE)
    while True:
        with database.write() as session:
            gone = session.execute(
                sa.delete(SampleRow)
                .where(SampleRow.id.in_(some))
                .execution_options(synchronize_session=False)
            )
            if not changed(gone):
                session.execute(sa.delete(JobRow).where(JobRow.id == job_id, JobRow.status == DISCARDED))
                return


def discard_abandoned(database: Database) -> int:
    """Remove incomplete jobs whose submitter died. Returns their number."""
    with database.read() as session:
        silent = sa.and_(JobRow.status == SUBMITTING, JobRow.served_at < now(session) - ABANDONED_SECONDS)
        statement = sa.select(JobRow.id).where(
            JobRow.status.in_((SUBMITTING, DISCARDED)), sa.or_(silent, JobRow.status == DISCARDED)
        )
        abandoned = session.scalars(statement).all()
    for job_id in abandoned:
        discard(database, job_id)
    return len(abandoned)


def _hide(session: Session, job_id: str) -> None:
    session.execute(
        sa.update(JobRow).where(JobRow.id == job_id).values(status=SUBMITTING, served_at=now(session))
    )


def _require(session: Session, job_id: str, **values: object) -> None:
    """Change the hidden job. Raises ServiceUnavailable if the reconciler has given it up."""
    held = session.execute(
        sa.update(JobRow).where(JobRow.id == job_id, JobRow.status == SUBMITTING).values(**values)
    )
    if not changed(held):
        raise ServiceUnavailable("the job was given up, since it took too long to store it; submit it again")
