"""Results of a job: its scores per condition."""

from copy import deepcopy

from sqlalchemy.orm import Session

from actograph.contract import resources
from actograph.contract.resources import JobStatus
from actograph.contract.tasks import task_name
from actograph.statistics import metrics
from storage.index.database import Database
from storage.jobs import job_shape, jobs
from storage.results import job_sums
from storage.results.job_sums import ConditionSums, JobSums
from storage.tables.models import JobRow

#: samples read in one transaction
PAGE = 2000
#: sums are kept once they cover so many further samples
KEEP_EVERY = 1000


def of_job(session: Session, row: JobRow) -> resources.JobResults:
    """Results by every sample that has ended so far, read in one transaction."""
    sums = JobSums()
    sums.add(job_sums.ended(session, row.id, begin=0), job_sums.epochs_of(row))
    return _results(row, sums)


def current(database: Database, job_id: str) -> resources.JobResults:
    """Results from the kept sums and from later samples.

    Raises:
        NotFound: no such job.
    """
    with database.snapshot() as session:
        row = jobs.get(session, job_id)
        kept = job_sums.load(session, row)
    found = _added_up(database, row.id, kept)
    row, sums, final = found
    if sums.ended != (row.completed, row.failed) and kept.position > 0:
        # counted samples have run again
        row, sums, final = _added_up(database, job_id, JobSums(scorers=row.spec.get("scorers")))
        kept = JobSums()
    if final.position - kept.position >= KEEP_EVERY and sums.ended == (row.completed, row.failed):
        with database.write() as session:
            job_sums.keep(session, job_id, final)
    return _results(row, sums)


def _added_up(database: Database, job_id: str, kept: JobSums) -> tuple[JobRow, JobSums, JobSums]:
    """The job, the sums of all samples that have ended, and those that are final."""
    final, limit = deepcopy(kept), PAGE
    while True:
        with database.snapshot() as session:
            row = jobs.get(session, job_id)
            epochs, end = job_sums.epochs_of(row), job_sums.final_before(session, row)
            if final.scorers != row.spec.get("scorers") or (end is not None and end < final.position):
                final = JobSums(scorers=row.spec.get("scorers"))
            page = job_sums.ended(session, job_id, begin=final.position, end=end, limit=limit)
            is_last = len(page) < limit
            rest = job_sums.ended(session, job_id, begin=end) if is_last and end is not None else []
        if is_last:
            break
        # the last problem may continue after the page
        whole = [sample for sample in page if sample.sample_index != page[-1].sample_index]
        limit = limit if whole else 2 * limit
        if whole:
            final.add(whole, epochs)
            final.position = whole[-1].position + 1
    final.add(page, epochs)
    final.position = end if end is not None else max(final.position, page[-1].position + 1 if page else 0)
    sums = deepcopy(final)
    sums.add(rest, epochs)
    return row, sums, final


def _results(row: JobRow, sums: JobSums) -> resources.JobResults:
    named = {condition["name"]: ConditionSums() for condition in row.spec.get("conditions", [])}
    named |= {name or row.kind: own for name, own in sums.conditions.items()}
    return resources.JobResults(
        job_id=row.id,
        status=JobStatus(row.status),
        task=task_name(row.spec.get("task")),
        progress=job_shape.progress(row),
        conditions={name: _condition_results(row, own) for name, own in named.items()},
    )


def _condition_results(row: JobRow, sums: ConditionSums) -> resources.ConditionResults:
    completed = sums.completed
    return resources.ConditionResults(
        alias=task_name(row.spec.get("task")) or row.kind,
        metrics=metrics.shown(sums.means) | metrics.shown(sums.of_epochs),
        samples=completed,
        failed=sums.failed,
        truncated=sums.truncated,
        tool_use=sums.tools,
        truncated_rate=sums.truncated / completed if completed else None,
        unparsed=sums.unparsed,
        unparsed_rate={key: count / completed for key, count in sums.unparsed.items()},
    )
