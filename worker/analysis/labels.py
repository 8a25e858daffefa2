"""Labels of sessions, for probes."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from actograph.contract.errors import InvalidDataset, InvalidRequest
from actograph.contract.specs import ProbeSpec
from actograph.scoring.final_answer import final_number
from actograph.scoring.scorers import gold_number
from storage.files import sample_labels
from storage.files.dataset_sources import Uploads
from worker.analysis.session_rows import AboutSession


def labels_of(spec: ProbeSpec, about: Sequence[AboutSession], uploads: Uploads) -> list[str | None]:
    """Label of each session as a text; None without one. The larger text is the positive class.

    Raises:
        InvalidRequest: the spec has `above`, and a label is not a number.
        InvalidDataset: the file of labels cannot be used.
    """
    if spec.labels is None:
        values = [_value(spec.label, one) for one in about]
    else:
        found = sample_labels.read(spec.labels, spec.label, uploads)
        values = [found.of({name: getattr(one, name) for name in sample_labels.KEYS}) for one in about]
    return [_text(value, spec.above) for value in values]


def _value(label: str, one: AboutSession) -> Any:
    """Value of the label that the index knows of a session."""
    match label:
        case "correct":
            return one.correct
        case "condition":
            return one.condition
        case "job":
            return one.job_id
        case "answer_parity":
            answer = final_number(one.completion)
            return None if answer is None else _parity(answer.value)
        case "target_parity":
            return _target_parity(one.input.get("answer"))
    if label in one.scores:
        return one.scores[label].get("value")
    if label in one.input:
        return one.input[label]
    return (one.input.get("columns") or {}).get(label)


def _target_parity(target: Any) -> str | None:
    if not isinstance(target, str):
        return None
    try:
        return _parity(gold_number(target).value)
    except InvalidDataset:
        return None


def _parity(value: Fraction) -> str | None:
    """`even` or `odd`; None for a fraction."""
    if value.denominator != 1:
        return None
    return "odd" if value.numerator % 2 else "even"


def _text(value: Any, above: float | None) -> str | None:
    if value is None:
        return None
    if above is not None:
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise InvalidRequest(
                f"the label {value!r} is not a number, which above needs", param="above"
            ) from None
        # "<" sorts before ">": the numbers above are the positive class
        return f"> {above:g}" if number > above else f"<= {above:g}"
    return str(int(value)) if isinstance(value, bool) else str(value)
