"""Verdicts and errors of a job's samples, without their texts."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.resources import SampleStatus
from storage.tables.models import SampleRow


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """State of one sample, and the value of its job's first scorer."""

    id: str
    index: int
    condition: str
    epoch: int
    status: SampleStatus
    #: value of the first scorer; None without scores
    value: float | None
    #: False if the scorer found no answer
    has_answer: bool
    generated_tokens: int | None


def verdicts(session: Session, job_id: str, limit: int) -> tuple[list[Verdict], bool]:
    """The first samples of a job in running order, and whether more follow."""
    statement = (
        sa.select(
            SampleRow.id,
            SampleRow.sample_index,
            SampleRow.condition,
            SampleRow.epoch,
            SampleRow.status,
            SampleRow.scores,
            SampleRow.generated_tokens,
        )
        .where(SampleRow.job_id == job_id)
        .order_by(SampleRow.position)
        .limit(limit + 1)
    )
    rows = session.execute(statement).all()
    return [_verdict(row) for row in rows[:limit]], len(rows) > limit


def error_groups(session: Session, job_id: str, limit: int = 1000) -> list[tuple[str, str, int, str]]:
    """Errors of the first failed samples: type, message, number of samples, and the first sample's id."""
    statement = (
        sa.select(SampleRow.id, SampleRow.error)
        .where(SampleRow.job_id == job_id, SampleRow.status == SampleStatus.FAILED)
        .order_by(SampleRow.position)
        .limit(limit)
    )
    counts: Counter[tuple[str, str]] = Counter()
    first: dict[tuple[str, str], str] = {}
    for sample_id, error in session.execute(statement):
        key = (
            str((error or {}).get("type", "")),
            str((error or {}).get("message", "no reason was recorded")),
        )
        counts[key] += 1
        first.setdefault(key, sample_id)
    return [(kind, message, count, first[kind, message]) for (kind, message), count in counts.most_common()]


def of_problem(session: Session, job_id: str, index: int, epoch: int) -> Sequence[tuple[str, str]]:
    """Condition and id of the job's samples of one problem, in running order."""
    statement = (
        sa.select(SampleRow.condition, SampleRow.id)
        .where(SampleRow.job_id == job_id, SampleRow.sample_index == index, SampleRow.epoch == epoch)
        .order_by(SampleRow.position)
    )
    return [(condition, sample_id) for condition, sample_id in session.execute(statement)]


def _verdict(row: sa.Row[Any]) -> Verdict:
    first = next(iter((row.scores or {}).values()), None)
    return Verdict(
        id=row.id,
        index=row.sample_index,
        condition=row.condition,
        epoch=row.epoch,
        status=SampleStatus(row.status),
        value=None if first is None else first["value"],
        has_answer=first is not None and first.get("answer") is not None,
        generated_tokens=row.generated_tokens,
    )
