"""Identifiers: a short prefix for the kind of object, and 128 random bits in hex."""

import json
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import InstrumentedAttribute, Session

_GIVEN = "given_ids"
_ID = re.compile(r"(job|smp|ses|file|wrk|vec|sae|evt|batch|key)_[0-9a-f]{32}")


def _new(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(16)}"


new_job_id = partial(_new, "job")
new_sample_id = partial(_new, "smp")
new_session_id = partial(_new, "ses")
new_file_id = partial(_new, "file")
new_worker_id = partial(_new, "wrk")
new_vector_id = partial(_new, "vec")
new_sae_id = partial(_new, "sae")
new_batch_id = partial(_new, "batch")
new_key_id = partial(_new, "key")


def slices(ids: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    """The ids in their order, up to `size` at once, for statements and transactions that must be short."""
    return (ids[start : start + size] for start in range(0, len(ids), size))


def among(
    session: Session, column: sa.ColumnElement[str] | InstrumentedAttribute[Any], ids: Iterable[str]
) -> sa.ColumnElement[bool]:
    """Condition `column IN ids` with one parameter, for any number of ids.

    An IN list has a parameter for each, and Postgres takes 65,535 of them, SQLite fewer.
    """
    dialect = session.get_bind().dialect.name
    (listed,) = among_values(dialect, ids).values()
    return _among(dialect, column, partial(sa.literal, listed))


def among_given(
    dialect: str, column: sa.ColumnElement[str] | InstrumentedAttribute[Any]
) -> sa.ColumnElement[bool]:
    """As `among`, for a statement that is built once and run with `among_values`. One in a statement."""
    return _among(dialect, column, partial(sa.bindparam, _GIVEN))


def among_values(dialect: str, ids: Iterable[str]) -> dict[str, Any]:
    """The parameters of a statement with `among_given`."""
    listed = sorted(set(ids))
    return {_GIVEN: listed if dialect == "postgresql" else json.dumps(listed)}


def _among(dialect: str, column: Any, parameter: Callable[..., Any]) -> sa.ColumnElement[bool]:
    """
    Args:
        parameter: makes the parameter of a type.
    """
    condition: sa.ColumnElement[bool]
    if dialect == "postgresql":
        condition = column == sa.any_(parameter(type_=ARRAY(sa.String)))
    else:
        each = sa.func.json_each(parameter(type_=sa.Text)).table_valued("value")
        condition = column.in_(sa.select(each.c.value))
    return condition


def is_beginning(text: str, prefix: str) -> bool:
    """True if `text` begins an id with this prefix, and is no full one."""
    return re.fullmatch(rf"{prefix}_[0-9a-f]{{1,31}}", text) is not None


def is_id(text: str, prefix: str) -> bool:
    """True if `text` is an id with this prefix (`job`, `smp`, `ses`, `file`, ...)."""
    match = _ID.fullmatch(text)
    return match is not None and match[1] == prefix
