"""Running sums of a job's scores.

Samples run in the order of their positions. So all samples before the first open one have ended, and their
sums are final. A reader of results keeps these sums in the index, and the next reader reads only later
samples. A retry or new scores make the sums invalid, and they are computed again.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import groupby
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract import resources
from actograph.contract.resources import SampleStatus, tool_use
from actograph.contract.resources.tool_use import ToolTotals, ToolUse
from actograph.statistics import epoch_metrics
from actograph.statistics.metrics import check_scorers, problem_mean
from actograph.statistics.moments import Moments
from storage.index.upsert import Upsert
from storage.jobs import jobs
from storage.tables.models import JobRow, JobSumsRow, SampleRow

_keep = Upsert(JobSumsRow, "position", "sums")


@dataclass(kw_only=True)
class ConditionSums:
    """Sums over the ended samples of one condition."""

    completed: int = 0
    failed: int = 0
    truncated: int = 0
    #: scorer -> samples in which it found no answer
    unparsed: dict[str, int] = field(default_factory=dict)
    #: metric -> its values, one for each problem
    means: dict[str, Moments] = field(default_factory=dict)
    of_epochs: dict[str, Moments] = field(default_factory=dict)
    tools: ToolTotals | None = None

    def add(self, samples: Sequence[sa.Row[Any]], epochs: int) -> None:
        """Add the ended samples of one problem, in the order of epochs."""
        done = [sample for sample in samples if sample.status == SampleStatus.COMPLETED]
        self.completed += len(done)
        self.failed += len(samples) - len(done)
        self.truncated += sum(sample.finish_reason == "length" for sample in done)
        uses = [ToolUse.model_validate(sample.tool_use) for sample in done if sample.tool_use]
        self.tools = tool_use.joined(self.tools, tool_use.totals(uses))
        scores = [
            {key: resources.Score.model_validate(score) for key, score in (sample.scores or {}).items()}
            for sample in done
        ]
        if not scores:
            return
        check_scorers([list(self.means), *scores] if self.completed > len(done) else scores)
        for key in scores[0]:
            missing = sum(sample[key].answer is None for sample in scores)
            self.unparsed[key] = self.unparsed.get(key, 0) + missing
            values = [sample[key].value for sample in scores]
            self.means.setdefault(key, Moments()).add([problem_mean(values)])
        if epochs > 1:
            epoch_metrics.add_problem(self.of_epochs, scores, epochs)


@dataclass(kw_only=True)
class JobSums:
    """Sums over all ended samples of a job before `position`."""

    #: the job's scorers when its samples were read
    scorers: Any = None
    position: int = 0
    conditions: dict[str, ConditionSums] = field(default_factory=dict)

    def add(self, samples: Iterable[sa.Row[Any]], epochs: int) -> None:
        """Add ended samples in running order; those of one problem stand together."""
        for _, of_problem in groupby(samples, key=lambda sample: sample.sample_index):
            by_condition: dict[str, list[sa.Row[Any]]] = {}
            for sample in of_problem:
                by_condition.setdefault(sample.condition, []).append(sample)
            for condition, own in by_condition.items():
                self.conditions.setdefault(condition, ConditionSums()).add(own, epochs)

    @property
    def ended(self) -> tuple[int, int]:
        """Completed and failed samples."""
        sums = self.conditions.values()
        return sum(one.completed for one in sums), sum(one.failed for one in sums)


def epochs_of(row: JobRow) -> int:
    return int(row.spec.get("epochs") or 1)


def final_before(session: Session, row: JobRow) -> int | None:
    """Position before which all samples of whole problems have ended; None if every sample has."""
    first_open: list[int] = []
    for status in jobs.OPEN:
        first = sa.select(sa.func.min(SampleRow.position)).where(
            SampleRow.job_id == row.id, SampleRow.status == status
        )
        position = session.scalar(first)
        first_open += [] if position is None else [position]
    if not first_open:
        return None
    # conditions and epochs of one problem stand together
    group = max(1, len(row.spec.get("conditions") or ())) * epochs_of(row) if row.kind == "evaluation" else 1
    return min(first_open) - min(first_open) % group


def ended(
    session: Session, job_id: str, *, begin: int, end: int | None = None, limit: int | None = None
) -> Sequence[sa.Row[Any]]:
    """Ended samples from position `begin` on, without their texts, in running order."""
    statement = (
        sa.select(
            SampleRow.position,
            SampleRow.condition,
            SampleRow.sample_index,
            SampleRow.status,
            SampleRow.scores,
            SampleRow.finish_reason,
            SampleRow.tool_use,
        )
        .where(
            SampleRow.job_id == job_id,
            SampleRow.position >= begin,
            SampleRow.status.in_((SampleStatus.COMPLETED, SampleStatus.FAILED)),
        )
        .order_by(SampleRow.position)
        .limit(limit)
    )
    if end is not None:
        statement = statement.where(SampleRow.position < end)
    return session.execute(statement).all()


def load(session: Session, row: JobRow) -> JobSums:
    """The kept sums; empty ones if there are none, or if the job was scored again."""
    kept = session.execute(
        sa.select(JobSumsRow.position, JobSumsRow.sums).where(JobSumsRow.job_id == row.id)
    ).first()
    if kept is None or kept.sums["scorers"] != row.spec.get("scorers"):
        return JobSums(scorers=row.spec.get("scorers"))
    conditions = {}
    for name, stored in kept.sums["conditions"].items():
        fields = dict(stored)
        for part in ("means", "of_epochs"):
            fields[part] = {key: Moments.from_stored(one) for key, one in fields[part].items()}
        if fields["tools"] is not None:
            fields["tools"] = ToolTotals.model_validate(fields["tools"])
        conditions[name] = ConditionSums(**fields)
    return JobSums(scorers=kept.sums["scorers"], position=kept.position, conditions=conditions)


def keep(session: Session, job_id: str, sums: JobSums) -> None:
    """Keep sums for the next reader, unless the job was deleted meanwhile."""
    if not jobs.keep(session, [job_id]):
        return
    conditions = {}
    for name, one in sums.conditions.items():
        stored = asdict(one) | {"tools": one.tools and one.tools.model_dump()}
        for part in ("means", "of_epochs"):
            stored[part] = {key: moments.as_stored() for key, moments in getattr(one, part).items()}
        conditions[name] = stored
    kept = {"scorers": sums.scorers, "conditions": conditions}
    _keep(session, [{"job_id": job_id, "position": sums.position, "sums": kept}])


def forget(session: Session, job_id: str) -> None:
    """Delete the kept sums, before a change of scores of ended samples."""
    session.execute(sa.delete(JobSumsRow).where(JobSumsRow.job_id == job_id))
