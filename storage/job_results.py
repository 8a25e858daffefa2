"""Scores of a job, summed up per condition from the samples that have finished."""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph import epoch_metrics, metrics
from actograph.contract import resources, tool_use
from actograph.contract.resources import JobStatus, SampleStatus
from actograph.contract.tasks import task_name
from actograph.contract.tool_use import ToolUse
from storage import job_shape
from storage.models import JobRow, SampleRow


def of_job(session: Session, row: JobRow) -> resources.JobResults:
    """Scores per condition of the samples finished so far."""
    grouped: dict[str, list[sa.Row[Any]]] = {}
    for condition in row.spec.get("conditions", []):
        grouped[condition["name"]] = []
    # the texts stay where they are: a job may have very many samples
    statement = (
        sa.select(
            SampleRow.condition,
            SampleRow.sample_index,
            SampleRow.status,
            SampleRow.scores,
            SampleRow.finish_reason,
            SampleRow.tool_use,
        )
        .where(
            SampleRow.job_id == row.id,
            SampleRow.status.in_((SampleStatus.COMPLETED, SampleStatus.FAILED)),
        )
        .order_by(SampleRow.position)
    )
    for sample in session.execute(statement):
        grouped.setdefault(sample.condition or row.kind, []).append(sample)
    return resources.JobResults(
        job_id=row.id,
        status=JobStatus(row.status),
        task=task_name(row.spec.get("task")),
        progress=job_shape.progress(row),
        conditions={name: _condition_results(row, samples) for name, samples in grouped.items()},
    )


def _condition_results(row: JobRow, samples: Sequence[sa.Row[Any]]) -> resources.ConditionResults:
    completed = [s for s in samples if s.status == SampleStatus.COMPLETED]
    scores = [
        {key: resources.Score.model_validate(score) for key, score in (s.scores or {}).items()}
        for s in completed
    ]
    truncated = sum(s.finish_reason == "length" for s in completed)
    unparsed = metrics.unparsed(scores)
    problems = [s.sample_index for s in completed]
    epochs = row.spec.get("epochs") or 1
    return resources.ConditionResults(
        alias=task_name(row.spec.get("task")) or row.kind,
        metrics=metrics.aggregate(scores, problems=problems)
        | epoch_metrics.of_epochs(scores, problems, epochs),
        samples=len(completed),
        failed=len(samples) - len(completed),
        truncated=truncated,
        tool_use=tool_use.totals([ToolUse.model_validate(s.tool_use) for s in completed if s.tool_use]),
        truncated_rate=truncated / len(completed) if completed else None,
        unparsed=unparsed,
        unparsed_rate={key: count / len(completed) for key, count in unparsed.items()},
    )
