"""Options that both drivers take, and scores in the service's form."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from actograph.contract.base import canonical_digest
from actograph.contract.job_options import capture_of as typed_capture
from actograph.contract.specs import CaptureSpec

#: letters of Inspect's scorers: correct, partially correct, incorrect, no answer
_LETTERS = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}


def capture_of(given: str | Sequence[str] | Mapping[str, Any] | None) -> dict[str, Any] | None:
    """A capture spec from `POINTS@LAYERS`, split at commas or not, or from its fields.

    Raises:
        InvalidRequest, ValidationError: it is not valid.
    """
    if not given:
        return None
    if not isinstance(given, str | Mapping):
        given = ",".join(map(str, given))
    return CaptureSpec.model_validate(typed_capture(given)).model_dump(mode="json", exclude_unset=True)


def problem_index(task: str, sample_id: int | str) -> int:
    """A number of a problem that depends on its task and id alone: 31 bits of their digest.

    A place in the run's list would change with `--limit` and shuffling, and pair other problems.
    """
    return int(canonical_digest([task, sample_id])[:8], 16) >> 1


def score_of(value: object) -> float | None:
    """A score as a number. Returns None for texts and for numbers that are not finite."""
    if isinstance(value, str):
        return _LETTERS.get(value)
    if isinstance(value, bool | int | float) and math.isfinite(value):
        return float(value)
    return None
