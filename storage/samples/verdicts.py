"""Verdicts and errors of a job's samples, without their texts."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.resources import SampleStatus
from storage.tables.models import SampleRow


@dataclass(frozen=True, slots=True)
class Verdict:
    """A sample with its verdict.

    The verdict of a completed sample is `right`, `wrong`, `no_answer` or, without scores, `done`. The verdict
    of another one is its status.
    """

    id: str
    sample_index: int
    condition: str
    epoch: int
    verdict: str
    session_id: str | None


class ErrorGroup(NamedTuple):
    """Failed samples with one error."""

    type: str
    message: str
    samples: int
    #: id of the first of them
    first: str


def verdicts(session: Session, job_id: str, first: int, limit: int) -> list[Verdict]:
    """Samples of a job in running order, from the place `first`."""
    row = SampleRow
    columns = (row.id, row.sample_index, row.condition, row.epoch, row.status, row.scores, row.session_id)
    chosen = sa.select(*columns).where(row.job_id == job_id, row.position >= first)
    return [
        Verdict(id, index, condition, epoch, _verdict(status, scores), session_id)
        for id, index, condition, epoch, status, scores, session_id in session.execute(
            chosen.order_by(row.position).limit(limit)
        )
    ]


def error_groups(session: Session, job_id: str, limit: int = 1000) -> list[ErrorGroup]:
    """Errors of the first `limit` failed samples, the most frequent first."""
    statement = (
        sa.select(SampleRow.id, SampleRow.error)
        .where(SampleRow.job_id == job_id, SampleRow.status == SampleStatus.FAILED)
        .order_by(SampleRow.position)
        .limit(limit)
    )
    counts: Counter[tuple[str, str]] = Counter()
    first: dict[tuple[str, str], str] = {}
    for sample_id, error in session.execute(statement):
        known = error or {"type": "", "message": "no reason was recorded"}
        key = (known["type"], known["message"])
        counts[key] += 1
        first.setdefault(key, sample_id)
    return [ErrorGroup(*key, count, first[key]) for key, count in counts.most_common()]


def of_problem(session: Session, job_id: str, index: int, epoch: int) -> Sequence[tuple[str, str]]:
    """Condition and id of the job's samples of one problem, in running order."""
    statement = (
        sa.select(SampleRow.condition, SampleRow.id)
        .where(SampleRow.job_id == job_id, SampleRow.sample_index == index, SampleRow.epoch == epoch)
        .order_by(SampleRow.position)
    )
    return [(condition, sample_id) for condition, sample_id in session.execute(statement)]


def _verdict(status: str, scores: dict[str, Any] | None) -> str:
    """The verdict of the first scorer, or the status."""
    if status != SampleStatus.COMPLETED:
        return str(status)
    score = next(iter((scores or {}).values()), None)
    if score is None:
        return "done"
    if score["value"] >= 1:
        return "right"
    return "no_answer" if score.get("answer") is None else "wrong"
