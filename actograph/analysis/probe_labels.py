"""Labels that a probe can learn. Needs numpy alone, so that a job is checked when it is submitted."""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from actograph.contract.errors import InvalidRequest

Array = NDArray[Any]
#: a classifier of two labels, or a regression of numbers
Predicts = Literal["classes", "numbers"]
_SHOWN = 5


def predicts(labels: Array, method: str) -> Predicts:
    """Whether a probe tells two labels apart, or predicts numbers, which `ridge` alone does.

    Args:
        labels: of each row, [n].
        method: kind of probe; "" for a comparison of two labels.

    Raises:
        InvalidRequest: a label is NaN, or the labels are neither two values nor numbers for `ridge`.
    """
    is_number = labels.dtype.kind in "fiub"
    if labels.dtype.kind == "f" and np.isnan(labels).any():
        raise InvalidRequest("a label is NaN; leave out rows without a label", param="label")
    found = np.unique(labels)
    if len(found) == 2:
        return "classes"
    if len(found) > 2 and is_number and method == "ridge":
        return "numbers"
    shown = ", ".join(map(str, found[:_SHOWN].tolist())) + (", ..." if len(found) > _SHOWN else "")
    advice = ", or use ridge, which predicts numbers" if method and len(found) > 2 and is_number else ""
    raise InvalidRequest(
        f"labels must have two different values{advice}; found {len(found)}: {shown}", param="label"
    )


def require_groups(labels: Array, groups: Array, folds: int, kind: Predicts) -> None:
    """Raises InvalidRequest if there are too few groups for the folds.

    Args:
        labels: of each row, [n].
        groups: of each row, [n]; with classes, every label needs a group in each fold.
    """
    parts = [labels == one for one in np.unique(labels)] if kind == "classes" else [slice(None)]
    least = min(len(np.unique(groups[part])) for part in parts)
    if folds < 2 or least < folds:
        what = f"a class with {least} groups" if kind == "classes" else f"{least} groups"
        advice = f"choose 2 to {least} folds" if least > 1 else "a probe needs 2 groups or more"
        raise InvalidRequest(f"{folds} folds, and {what}: {advice}", param="folds")
