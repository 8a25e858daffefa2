"""Plain tables and descriptions of the contract's resources."""

import time
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter, itemgetter, methodcaller
from typing import TYPE_CHECKING, Any

from actograph.contract.errors import InvalidRequest
from actograph.short_texts import age, duration, shorten, size

if TYPE_CHECKING:
    from pydantic import BaseModel

#: columns of a table: `attribute`, `header=attribute`, or (header, function of an item)
Columns = Sequence[str | tuple[str, Callable[[Any], object]]]

_EMPTY: tuple[object, ...] = (None, "", [], {})


def table(columns: Columns, items: Iterable[Any], *, short: bool = True) -> str:
    """Render items with right-aligned numbers. `short` shortens the ids of columns named `... id`."""
    listed, headers, cells = list(items), [], []
    for column in columns:
        name, read = column if isinstance(column, tuple) else (column, attrgetter(column.split("=")[-1]))
        header, _, name = name.rpartition("=")
        header = header or name
        values = [read(item) for item in listed]
        texts = [text_of(name, value).removesuffix(" ago") for value in values]
        if short and header.endswith((" id", "_id")):
            texts = [shorten(text) for text in texts]
        right = any(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
        right = right and not name.endswith(("_at", "since", "_seconds"))
        headers.append((">" if right else "") + header.upper().replace("_", " "))
        cells.append(texts)
    return render(headers, zip(*cells, strict=True))


def field_of(item: Any, path: str) -> Any:
    """Return the value of a field such as `progress.completed`. Raises InvalidRequest if there is none."""
    value = item
    for part in path.split("."):
        if isinstance(value, Mapping):
            value = value.get(part)
        elif part in getattr(type(value), "model_fields", ()):
            value = getattr(value, part)
        elif value is not None:
            known = ", ".join(type(item).model_fields)
            raise InvalidRequest(f"there is no field {path!r}; the fields are {known}")
    return value


def ordered(items: Iterable[Any], field: str) -> list[Any]:
    """Sort items by a field, or by `-FIELD` in descending order; those without a value come last.

    Raises:
        InvalidRequest: there is no such field, or its values have no order.
    """
    path = field.removeprefix("-")
    keyed = [(field_of(item, path), item) for item in items]
    known = [pair for pair in keyed if pair[0] is not None]
    try:
        known.sort(key=itemgetter(0), reverse=field.startswith("-"))
    except TypeError:
        raise InvalidRequest(f"values of {path!r} have no order; sort by another field") from None
    return [item for _, item in known] + [item for value, item in keyed if value is None]


def describe(item: "BaseModel", hidden: Iterable[str] = (), **changed: object) -> str:
    """Describe a resource: its fields, then a table for each list and map of objects.

    Empty fields and those of `hidden` are left out; values of `changed` replace its own.
    """
    values = {name: getattr(item, name) for name in type(item).model_fields if name != "object"} | changed
    lines: dict[str, str] = {}
    tables = []
    for name, value in values.items():
        if name in hidden or value in _EMPTY:
            continue
        if rows := _rows(name, value):
            columns = dict.fromkeys(name for row in rows for name, one in row.items() if one not in _EMPTY)
            tables.append(
                table([(column, methodcaller("get", column)) for column in columns], rows, short=False)
            )
        else:
            lines[name.replace("_", " ")] = text_of(name, value)
    return "\n\n".join([fields(lines), *tables])


def _rows(name: str, value: Any) -> list[dict[str, Any]]:
    """Return a row per object of a list, or per entry of a map with its key as `name`.

    Returns none for other values, and for a map of numbers.
    """
    named = isinstance(value, Mapping)
    items = list(value.items()) if named else list(enumerate(value)) if isinstance(value, list) else []
    if not all(hasattr(one, "model_dump") or (named and not isinstance(one, int)) for _, one in items):
        return []
    rows = [dict(one) if hasattr(one, "model_dump") else {"value": one} for _, one in items]
    return [{name: key} | row for (key, _), row in zip(items, rows, strict=True)] if named else rows


def fields(values: Mapping[str, str]) -> str:
    """Render one `name: value` per line, without empty values."""
    width = max(map(len, values), default=0) + 1
    return "\n".join(f"{name + ':':<{width}} {clean(text)}" for name, text in values.items() if text)


def text_of(name: str, value: Any) -> str:
    """Return the text of a field: sizes, times and durations by its name, other values by their type."""
    if value is None or isinstance(value, bool):
        return yes_no(value)
    if name.endswith(("_at", "since")):
        left = value - time.time()
        return f"in {duration(left)}" if left > 0 else f"{age(value)} ago"
    if "bytes" in name or name in ("needed", "available"):
        return size(value)
    if name.endswith("_seconds"):
        return duration(value)
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, tuple):
        return "x".join(map(str, value))
    if isinstance(value, list):
        return ", ".join(text_of("", one) for one in value)
    if hasattr(value, "model_dump"):
        return ", ".join(f"{key} {text_of(key, one)}" for key, one in value if one is not None)
    if isinstance(value, Mapping):
        return ", ".join(f"{text_of(key, count)} {key}" for key, count in value.items() if count)
    return str(value)


def render(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Render cells under headers; a header `>NAME` right-aligns its column. None is an empty cell."""
    lines = [[header.lstrip(">") for header in headers]]
    lines += [["" if cell is None else clean(str(cell)) for cell in row] for row in rows]
    widths = [max(map(_width, column)) for column in zip(*lines, strict=True)]
    out = []
    for line in lines:
        cells = []
        for header, cell, width in zip(headers, line, widths, strict=True):
            space = " " * (width - _width(cell))
            cells.append(space + cell if header.startswith(">") else cell + space)
        out.append("   ".join(cells).rstrip())
    return "\n".join(out)


def clean(text: str) -> str:
    """Replace control characters by spaces: text from elsewhere must not control the terminal."""
    return "".join(" " if unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp") else c for c in text)


def cut(text: str, columns: int) -> str:
    """Shorten a text to one line of `columns`; an ellipsis marks the cut."""
    line = clean(text if len(text) <= 4 * columns else f"{text[: 4 * columns]}…")
    while _width(line) > columns:
        line = line[: max(0, min(len(line) - 2, columns - 1))] + "…"
    return line


def yes_no(value: bool | None) -> str:
    return "" if value is None else "yes" if value else "no"


def _width(text: str) -> int:
    """Return the terminal columns of a text: wide characters take two, combining ones none."""
    from rich.cells import cell_len

    return cell_len(text)
