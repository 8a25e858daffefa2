"""Tables of analysis results: cells as texts with links, cut to a length that a page can show."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from api.pages.rendering import number

#: rows of one table; the files of the analysis have all
MAX_ROWS = 200
_MAX_TEXT = 300
_LINKS = (
    (re.compile(r"job_[0-9a-f]{32}"), "/jobs/"),
    (re.compile(r"ses_[0-9a-f]{32}"), "/sessions/"),
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One value as a text."""

    text: str
    is_number: bool = False
    href: str = ""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows under their heads."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    #: rows of the whole result
    total: int


def table(title: str, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> Table:
    """A table of the first `MAX_ROWS` rows."""
    found = list(rows)
    shown = [[cell(value) for value in row] for row in found[:MAX_ROWS]]
    return Table(title=title_of(title), head=[title_of(one) for one in head], rows=shown, total=len(found))


def words(name: str) -> str:
    """The name of a field as words."""
    return name.replace("_", " ")


def title_of(name: str) -> str:
    """The name of a field as a title."""
    text = words(name)
    return text[:1].upper() + text[1:]


def cell(value: Any) -> Cell:
    """A value of a result as a text."""
    if value is None:
        return Cell("–", is_number=True)
    if isinstance(value, bool):
        return Cell("yes" if value else "no")
    if isinstance(value, int | float):
        return Cell(number(value), is_number=True)
    if isinstance(value, list) and len(value) == 2 and all(isinstance(one, int | float) for one in value):
        return Cell(f"{number(value[0])} to {number(value[1])}", is_number=True)
    if isinstance(value, list) and all(isinstance(one, int | float | str) for one in value):
        return Cell(", ".join(map(str, value))[:_MAX_TEXT])
    text = str(value)[:_MAX_TEXT]
    for pattern, path in _LINKS:
        if pattern.fullmatch(text):
            return Cell(f"{text[:12]}", href=path + text)
    return Cell(text)


def is_plain(value: Any) -> bool:
    """True if a value fits into a cell: a number, a text, or a short list of them."""
    if isinstance(value, list):
        return len(value) <= 64 and all(isinstance(one, int | float | str) or one is None for one in value)
    return not isinstance(value, Mapping)
