"""Contents of an export, read at one moment, so that its files agree; and the names of its files."""

from array import array
from dataclasses import dataclass

import sqlalchemy as sa

from actograph.contract import resources
from actograph.contract.errors import InvalidRequest
from actograph.contract.job_specs import MODEL_KINDS
from actograph.contract.resources import JobComparison, SampleStatus
from storage.index.database import Database, now
from storage.jobs import jobs
from storage.queue import view
from storage.results import comparisons, summary
from storage.results.comparisons import Bootstrap
from storage.results.export.of_condition import safe_part
from storage.results.export.sample import Detail
from storage.tables.models import SampleRow


@dataclass(frozen=True, kw_only=True)
class ExportPlan:
    """Results of a job at the time of the request."""

    job: resources.Job
    results: resources.JobResults
    #: None if the job has fewer than two conditions
    comparison: JobComparison | None
    #: positions of ended samples, in running order
    positions: "array[int]"
    detail: Detail
    #: Unix seconds
    exported_at: int

    @property
    def task(self) -> str:
        return self.results.task or self.job.kind

    def name_of(self, index: int, condition: str | None, epoch: int) -> str:
        """A name such as `gsm8k_0001`, or `gsm8k_0001__ep02__epoch_1` with several conditions or epochs.

        Numbers count from 1; the first is the problem's row in the dataset.
        """
        name = f"{safe_part(self.task, 'sample')}_{index + 1:04d}"
        # the samples of replays and patches have the conditions of their sources, and are numbered by epochs
        is_replay = self.job.kind in ("replay", "patch")
        if len(self.job.spec.get("conditions") or []) > 1 or (is_replay and condition):
            name += f"__{safe_part(condition or '', 'none')}"
        has_epochs = is_replay or (self.job.spec.get("epochs") or 1) > 1
        return name + (f"__epoch_{epoch + 1}" if has_epochs else "")


def prepare(database: Database, job_id: str, detail: Detail) -> ExportPlan:
    """Plan the export of a job.

    Raises:
        NotFound: no such job.
        InvalidRequest: the job has no samples, such as a model's load.
    """
    with database.snapshot() as session:
        row = jobs.get(session, job_id)
        if row.kind not in MODEL_KINDS:
            raise InvalidRequest(f"job {job_id} is of kind {row.kind}, which has no results to export")
        statement = (
            sa.select(SampleRow.position)
            .where(
                SampleRow.job_id == job_id,
                SampleRow.status.in_((SampleStatus.COMPLETED, SampleStatus.FAILED)),
            )
            .order_by(SampleRow.position)
        )
        positions = array("q", session.scalars(statement))
        conditions = None
        if len(row.spec.get("conditions") or []) > 1:
            conditions = comparisons.read(session, row, baseline=None)
        job = view.job(session, row)
        results = summary.of_job(session, row)
        exported_at = int(now(session))
    return ExportPlan(
        job=job,
        results=results,
        comparison=None if conditions is None else conditions.compare(Bootstrap()),
        positions=positions,
        detail=detail,
        exported_at=exported_at,
    )
