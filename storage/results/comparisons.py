"""Compare conditions of a job on the problems that both have finished."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.errors import InvalidRequest
from actograph.contract.resources import (
    ConditionComparison,
    JobComparison,
    JobStatus,
    MetricDifference,
    PairedDifference,
    SampleStatus,
)
from evals.statistics import paired
from storage.tables.models import JobRow, SampleRow

#: (sample index, epoch): what the two samples of a pair have in common
Twin = tuple[int, int]


@dataclass(frozen=True, slots=True)
class ComparedSample:
    """Fields of a completed sample used by a comparison."""

    scores: Mapping[str, float]
    prompt_tokens: int
    generated_tokens: int
    session_id: str | None


@dataclass(frozen=True, slots=True)
class Bootstrap:
    """Options of bootstrap intervals."""

    level: float = paired.DEFAULT_LEVEL
    resamples: int = paired.DEFAULT_RESAMPLES
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Conditions:
    """The finished samples of a job's conditions."""

    job_id: str
    status: JobStatus
    #: the condition that the others are compared with
    baseline: str
    finished: Mapping[str, Mapping[Twin, ComparedSample]]

    def compare(self, bootstrap: Bootstrap) -> JobComparison:
        """Every other condition against the baseline. It may take seconds, and needs no database."""
        first = self.finished[self.baseline]
        return JobComparison(
            job_id=self.job_id,
            status=self.status,
            baseline=self.baseline,
            level=bootstrap.level,
            resamples=bootstrap.resamples,
            conditions={
                name: _compare(first, finished, bootstrap)
                for name, finished in self.finished.items()
                if name != self.baseline
            },
        )


def read(session: Session, row: JobRow, *, baseline: str | None) -> Conditions:
    """Read the samples to compare; the baseline is the job's first condition by default.

    Raises:
        InvalidRequest: the job has fewer than two conditions, or no condition named `baseline`.
    """
    names = condition_names(row)
    return Conditions(
        job_id=row.id,
        status=JobStatus(row.status),
        baseline=baseline_of(names, baseline),
        finished=finished_samples(session, row.id, names),
    )


def condition_names(row: JobRow) -> list[str]:
    """Names of the conditions. Raises InvalidRequest if there are fewer than two."""
    names = [str(condition["name"]) for condition in row.spec.get("conditions") or []]
    if len(names) < 2:
        raise InvalidRequest(f"job {row.id} has fewer than two conditions; a comparison needs two")
    return names


def baseline_of(names: Sequence[str], wanted: str | None) -> str:
    """Raises InvalidRequest if the job has no condition of that name."""
    return names[0] if wanted is None else require_condition(names, wanted, "baseline")


def require_condition(names: Sequence[str], wanted: str, param: str) -> str:
    """Raises InvalidRequest if the job has no condition of that name."""
    if wanted not in names:
        raise InvalidRequest(f"no condition {wanted}; the job has {', '.join(names)}", param=param)
    return wanted


def finished_samples(
    session: Session, job_id: str, conditions: Sequence[str]
) -> dict[str, dict[Twin, ComparedSample]]:
    """Completed samples of each condition, in the order of the dataset."""
    statement = (
        sa.select(
            SampleRow.condition,
            SampleRow.sample_index,
            SampleRow.epoch,
            SampleRow.scores,
            SampleRow.prompt_tokens,
            SampleRow.generated_tokens,
            SampleRow.session_id,
        )
        .where(
            SampleRow.job_id == job_id,
            SampleRow.status == SampleStatus.COMPLETED,
            SampleRow.condition.in_(conditions),
        )
        .order_by(SampleRow.sample_index, SampleRow.epoch)
    )
    found: dict[str, dict[Twin, ComparedSample]] = {name: {} for name in conditions}
    for sample in session.execute(statement):
        found[sample.condition][sample.sample_index, sample.epoch] = ComparedSample(
            scores={key: float(score["value"]) for key, score in (sample.scores or {}).items()},
            prompt_tokens=sample.prompt_tokens or 0,
            generated_tokens=sample.generated_tokens or 0,
            session_id=sample.session_id,
        )
    return found


def _compare(
    baseline: Mapping[Twin, ComparedSample], condition: Mapping[Twin, ComparedSample], bootstrap: Bootstrap
) -> ConditionComparison:
    twins = [twin for twin in baseline if twin in condition]
    pairs = [(baseline[twin], condition[twin]) for twin in twins]
    problems = [index for index, _ in twins]
    epochs = len({epoch for _, epoch in twins})

    def tokens(name: str) -> PairedDifference:
        return PairedDifference(
            **_difference([(getattr(a, name), getattr(b, name)) for a, b in pairs], problems, bootstrap)
        )

    keys = list(dict.fromkeys(key for a, b in pairs for key in a.scores if key in b.scores))
    metrics = {}
    for key in keys:
        scored = [
            (problem, a.scores[key], b.scores[key])
            for problem, (a, b) in zip(problems, pairs, strict=True)
            if key in a.scores and key in b.scores
        ]
        values = [(a, b) for _, a, b in scored]
        fields = _difference(values, [problem for problem, _, _ in scored], bootstrap)
        metrics[key] = MetricDifference(**fields, **_discordant(values, epochs))
    return ConditionComparison(
        unpaired=len(baseline) + len(condition) - 2 * len(twins),
        metrics=metrics,
        prompt_tokens=tokens("prompt_tokens"),
        generated_tokens=tokens("generated_tokens"),
    )


def _difference(
    values: Sequence[tuple[float, float]], problems: Sequence[int], bootstrap: Bootstrap
) -> dict[str, Any]:
    if not values:
        return {"pairs": 0}
    differences = paired.per_problem([b - a for a, b in values], problems)
    interval = paired.bootstrap_interval(
        differences, level=bootstrap.level, resamples=bootstrap.resamples, seed=bootstrap.seed
    )
    return {
        "pairs": len(values),
        "baseline": float(paired.per_problem([a for a, _ in values], problems).mean()),
        "condition": float(paired.per_problem([b for _, b in values], problems).mean()),
        "difference": float(differences.mean()),
        "low": interval.low if interval else None,
        "high": interval.high if interval else None,
    }


def _discordant(values: Sequence[tuple[float, float]], epochs: int) -> dict[str, Any]:
    if not values or any(value not in (0.0, 1.0) for pair in values for value in pair):
        return {}
    only_baseline = sum(a > b for a, b in values)
    only_condition = sum(b > a for a, b in values)
    return {
        "only_baseline": only_baseline,
        "only_condition": only_condition,
        "mcnemar_p": paired.mcnemar(only_baseline, only_condition) if epochs == 1 else None,
    }
