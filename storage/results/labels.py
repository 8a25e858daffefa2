"""Labels and groups of sessions: verdicts, conditions, scores, and values that came with inputs or rows.

Probes, matrices and comparisons name them alike. A column is a field of the sample's input, such as `prompt`
or `label`, or a column of its dataset's row.
"""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.analyses import COLUMN, CONDITION, CORRECT, OWN_COLUMNS
from actograph.contract.errors import InvalidRequest
from actograph.contract.suggestions import LISTED, did_you_mean
from storage.index.ids import among
from storage.results.matrix import SessionSource
from storage.tables.models import SampleRow

#: label of a session
Label = float | str
Values = Mapping[str, Any]


def labels(session: Session, found: Sequence[SessionSource], label: str) -> dict[str, Label]:
    """Label of each session that has one, by its id: all are numbers, or all are texts.

    Args:
        label: `correct`, `condition`, `label` or `group` of the inputs, `column:NAME`, or a score.

    Raises:
        InvalidRequest: no session has this label, or the values are not of one kind.
    """
    if label == CORRECT:
        return {one.id: float(one.correct) for one in found if one.correct is not None}
    if label == CONDITION:
        return {one.id: one.condition for one in found}
    column = column_of(label)
    if column is None:
        values = {one.id: float(one.scores[label]["value"]) for one in found if label in one.scores}
        if found and not values:
            raise _unknown(session, found, label)
        return dict(values)
    known = {one: row[column] for one, row in columns(session, found).items() if column in row}
    if found and not known:
        raise _no_column(session, found, column, "label")
    return _of_one_kind(known, column)


def groups(session: Session, found: Sequence[SessionSource], by: str) -> dict[str, int | str]:
    """The group of each session by its id.

    Args:
        by: `sample`, `group` of the inputs, or `column:NAME`.

    Raises:
        InvalidRequest: a session has no such column.
    """
    column = column_of(by)
    if column is None:
        return {one.id: one.sample_index for one in found}
    of_session = columns(session, found)
    values: dict[str, int | str] = {}
    for one in found:
        if column not in of_session[one.id]:
            raise _no_column(session, [one], column, "groups")
        value = of_session[one.id][column]
        values[one.id] = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    return values


def column_of(name: str) -> str | None:
    """The column that a label or a group names; None if it names none."""
    if name in OWN_COLUMNS:
        return name
    return name.removeprefix(COLUMN) if name.startswith(COLUMN) else None


def columns(session: Session, found: Sequence[SessionSource]) -> dict[str, Values]:
    """Columns of each session by its id."""
    of_samples: dict[str, Values] = {}
    ids = among(session, SampleRow.id, (one.sample_id for one in found))
    for sample_id, given in session.execute(sa.select(SampleRow.id, SampleRow.input).where(ids)):
        own = {name: value for name, value in given.items() if name != "columns"}
        of_samples[sample_id] = own | (given.get("columns") or {})
    return {one.id: of_samples[one.sample_id] for one in found}


def _of_one_kind(known: Mapping[str, Any], column: str) -> dict[str, Label]:
    """The values of a column as labels; texts that are all numbers, as in CSV files, are numbers."""
    texts = [value for value in known.values() if isinstance(value, str)]
    if len(texts) == len(known):
        numbers = [_number(text) for text in texts]
        if any(number is None for number in numbers):
            return dict(known)
        return {one: number for one, number in zip(known, numbers, strict=True) if number is not None}
    for value in known.values():
        if isinstance(value, bool | int | float) and not texts:
            continue
        what = f"texts such as {texts[0]!r} and numbers" if texts else json.dumps(value)[:40]
        raise InvalidRequest(
            f"column {column} has {what}; labels must be all texts, or all numbers or booleans", param="label"
        )
    return {one: float(value) for one, value in known.items()}


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _known(session: Session, found: Sequence[SessionSource]) -> list[str]:
    """Labels that can be named, the shortest way."""
    scores = dict.fromkeys(name for one in found for name in one.scores)
    named = dict.fromkeys(name for row in columns(session, found[:1]).values() for name in row)
    columns_of = [name if name in OWN_COLUMNS else f"{COLUMN}{name}" for name in named]
    return [*sorted(columns_of, key=lambda one: one not in OWN_COLUMNS), *scores, CORRECT, CONDITION]


def _unknown(session: Session, found: Sequence[SessionSource], label: str) -> InvalidRequest:
    known = _known(session, found)
    return InvalidRequest(f"no sample has the label {label!r}{did_you_mean(label, known)}", param="label")


def lacking(session: Session, found: Sequence[SessionSource], label: str) -> InvalidRequest:
    """The error if no session has a label that any session may have, such as `correct`."""
    named = [name for name in _known(session, found) if name != label]
    return InvalidRequest(
        f"no session has a value of the label {label!r}. Choose another label: {', '.join(named[:LISTED])}",
        param="label",
    )


def _no_column(session: Session, found: Sequence[SessionSource], column: str, param: str) -> InvalidRequest:
    (row,) = columns(session, found[:1]).values()
    return InvalidRequest(
        f"sample {found[0].sample_index} has no column {column!r}{did_you_mean(column, row)}", param=param
    )
