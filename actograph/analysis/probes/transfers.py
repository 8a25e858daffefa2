"""Probes scored on another job, beside baselines that were fitted on the same rows as the probes."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actograph.analysis.probes import scores
from actograph.analysis.probes.probe import Direction, ProbeResult, transfer

Array = NDArray[Any]


@dataclass(frozen=True)
class OtherRows:
    """Labels [m] and groups [m] of the rows that probes are scored on."""

    labels: Sequence[Any]
    groups: Sequence[Hashable]


def transfer_report(
    fitted: ProbeResult,
    features: Array,
    rows: OtherRows,
    baselines: Mapping[str, tuple[ProbeResult, Array]],
) -> dict[str, Any]:
    """Score a probe and its baselines on other rows, as a JSON object.

    Args:
        features: [m, width] of the probe's hook.
        baselines: name -> a probe of other features, and these features [m, any width].

    Raises:
        InvalidRequest: a width differs, or a label is of neither class.
    """
    report = transfer(fitted, features, rows.labels, rows.groups).as_json()
    fewer = replace(fitted.options, resamples=max(1, fitted.options.resamples // 5))
    share = fitted.positive_rows / fitted.rows
    constant = Direction(weights=np.zeros(1), bias=float(np.log(share / (1 - share))))
    majority = replace(fitted, width=1, direction=constant)
    every = {"majority": (majority, np.zeros((len(rows.labels), 1)))} | dict(baselines)
    report["baselines"] = {
        name: scores.brief(transfer(replace(one, options=fewer), values, rows.labels, rows.groups))
        for name, (one, values) in every.items()
    }
    return report | {"rows": len(rows.labels), "groups": len(set(rows.groups))}
