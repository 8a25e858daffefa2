"""Results of a job: its scores per condition, summed over every sample that has ended."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import groupby
from operator import attrgetter
from statistics import fmean
from typing import Any

import sqlalchemy as sa
from pydantic import TypeAdapter
from sqlalchemy.orm import Session

from actograph.contract import resources
from actograph.contract.resources import JobStatus, SampleStatus, ToolUse
from actograph.contract.tasks import task_name
from evals.statistics import metrics
from storage.index import tallies
from storage.results import readouts
from storage.tables.models import JobRow, SampleRow, SessionRow

#: samples in memory at once
PAGE = 1000
_scores = TypeAdapter(dict[str, resources.Score])


class ConditionSums:
    """Sums over the ended samples of one condition."""

    def __init__(self) -> None:
        self.problems = 0
        self.completed = 0
        self.failed = 0
        self.truncated = 0
        #: scorer -> samples in which it found no answer
        self.unparsed: dict[str, int] = defaultdict(int)
        #: metric -> its values, one for each problem
        self.means: metrics.Values = defaultdict(list)
        self.of_epochs: metrics.Values = {}
        #: equal numbers are counted, so that memory does not grow with the samples
        self.tool_uses: Counter[ToolUse] = Counter()

    def add(self, samples: Sequence[sa.Row[Any]], epochs: int, *, is_evaluation: bool) -> None:
        """Add the ended samples of one problem, in the order of epochs.

        Samples of other jobs than evaluations may have scores by other programs, or none.
        """
        scores: list[dict[str, dict[str, Any]]] = []
        self.problems += 1
        for sample in samples:
            if sample.status != SampleStatus.COMPLETED:
                self.failed += 1
                continue
            self.completed += 1
            self.truncated += sample.finish_reason == "length"
            if sample.tool_use:
                self.tool_uses[ToolUse.model_validate(sample.tool_use)] += 1
            scores.append(sample.scores or {})
        if not scores:
            return
        if is_evaluation:
            metrics.check_scorers([list(self.means), *scores] if self.means else scores)
        for key in dict.fromkeys(key for sample in scores for key in sample):
            found = [sample[key] for sample in scores if key in sample]
            self.means[key].append(fmean([score["value"] for score in found]))
            if is_evaluation:
                self.unparsed[key] += [score.get("answer") for score in found].count(None)
        if is_evaluation and epochs > 1:
            metrics.add_problem(self.of_epochs, [_scores.validate_python(one) for one in scores], epochs)

    def resource(self, alias: str) -> resources.ConditionResults:
        return resources.ConditionResults(
            alias=alias,
            metrics=metrics.shown(self.means) | metrics.shown(self.of_epochs),
            intervals=metrics.intervals(self.means) | metrics.intervals(self.of_epochs),
            left_out={
                name: self.problems - len(values)
                for name, values in self.of_epochs.items()
                if len(values) < self.problems
            },
            samples=self.completed,
            failed=self.failed,
            truncated=self.truncated,
            tool_use=resources.totals(self.tool_uses),
            truncated_rate=self.truncated / self.completed if self.completed else None,
            unparsed=self.unparsed,
            unparsed_rate={key: count / self.completed for key, count in self.unparsed.items()},
        )


def of_job(session: Session, row: JobRow, *, fires_above: float = 0.0) -> resources.JobResults:
    """Results of the samples that have ended so far. Call it in a `Database.snapshot`.

    Args:
        fires_above: a readout fires in a sample whose largest value is above it.
    """
    task = task_name(row.spec.get("task"))
    epochs = int(row.spec.get("epochs") or 1)
    conditions = {condition["name"]: ConditionSums() for condition in row.spec.get("conditions", [])}
    # the samples of one problem are consecutive
    for _, problem in groupby(_ended(session, row.id), key=attrgetter("sample_index")):
        by_condition: dict[str, list[sa.Row[Any]]] = {}
        for sample in problem:
            by_condition.setdefault(sample.condition or row.kind, []).append(sample)
        for name, samples in by_condition.items():
            sums = conditions.setdefault(name, ConditionSums())
            sums.add(samples, epochs, is_evaluation=row.kind == "evaluation")
    fired = readouts.of_job(session, row, fires_above)
    return resources.JobResults(
        compared=_compared(session, row.id) if row.kind == "replay" else {},
        job_id=row.id,
        status=JobStatus(row.status),
        task=task,
        progress=tallies.progress(session, row)[row.id],
        conditions={
            name: sums.resource(task or row.kind).model_copy(update={"readouts": fired.get(name, {})})
            for name, sums in conditions.items()
        },
    )


def _compared(session: Session, job_id: str) -> dict[str, resources.RowDifference]:
    """The compared rows of a replay by hook, over all its sessions."""
    sums: dict[str, resources.RowDifference] = {}
    stored = sa.select(SessionRow.hooks).where(SessionRow.job_id == job_id)
    for hooks in session.scalars(stored, execution_options={"yield_per": PAGE}):
        for hook, info in hooks.items():
            if not info.get("compared"):
                continue
            one = resources.RowDifference.model_validate(info["compared"])
            known = sums.get(hook, one.model_copy(update={"rows": 0}))
            largest = {
                name: max(getattr(known, name), getattr(one, name))
                for name in ("difference", "scale", "tolerance")
            }
            sums[hook] = resources.RowDifference(rows=known.rows + one.rows, **largest)
    return sums


def _ended(session: Session, job_id: str) -> sa.Result[Any]:
    """Ended samples of a job, without their texts, in running order."""
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
            SampleRow.job_id == job_id,
            SampleRow.status.in_((SampleStatus.COMPLETED, SampleStatus.FAILED)),
        )
        .order_by(SampleRow.position)
    )
    return session.execute(statement, execution_options={"yield_per": PAGE})
