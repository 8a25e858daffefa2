"""Intervals of metrics, as coordinates of a drawing."""

from collections.abc import Mapping
from dataclasses import dataclass

from actograph.contract.resources import ConditionResults

#: half the width of a 95 % interval of a normal distribution, in standard errors
_Z = 1.959964
_STDERR = "_stderr"


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """A metric of one condition with its 95 % interval; `low` and `high` are None without an error."""

    condition: str
    alias: str
    mean: float
    low: float | None
    high: float | None
    samples: int
    #: True if the axis goes from 0 to 1
    is_share: bool

    def percent_of_axis(self, value: float) -> float:
        """Place on an axis from 0 to 100."""
        return round(min(max(value, 0.0), 1.0) * 100, 3)


def intervals(conditions: Mapping[str, ConditionResults]) -> dict[str, list[Interval]]:
    """Metric -> its interval under each condition, in the order of the conditions."""
    found: dict[str, list[Interval]] = {}
    for name, condition in conditions.items():
        for key, mean in condition.metrics.items():
            metric, _, kind = key.partition(",")
            if mean is None or metric.endswith(_STDERR):
                continue
            error = condition.metrics.get(f"{metric}{_STDERR},{kind}" if kind else f"{metric}{_STDERR}")
            found.setdefault(key, []).append(
                Interval(
                    condition=name,
                    alias=condition.alias,
                    mean=mean,
                    low=None if error is None else mean - _Z * error,
                    high=None if error is None else mean + _Z * error,
                    samples=condition.scored.get(key, condition.samples),
                    is_share=0 <= mean <= 1,
                )
            )
    return found
