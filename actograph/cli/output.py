"""Output of the command line: results to stdout, notes to stderr, plain tables, exit statuses."""

import sys
import time
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import islice
from typing import Any

from actograph.contract.errors import ActographError, InvalidRequest

#: exit statuses; they mean the same as in GitHub's `gh`
OK, ERROR, CANCELLED, AUTH, INTERRUPTED = 0, 1, 2, 4, 130
#: entries of a list without --limit and --all
DEFAULT_LIMIT = 20

#: header -> cell of an item. `>NAME` is right-aligned, `... ID` holds ids.
Columns = Mapping[str, Callable[[Any], object]]


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"


class Ended(Exception):
    """Ends the command with a status and no message. Typer's Exit would look like a usage error to `main`."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def end(code: int) -> None:
    """End the command, unless the status is 0."""
    if code:
        raise Ended(code)


def job_status_code(status: str) -> int:
    return {"completed": OK, "cancelled": CANCELLED}.get(status, ERROR)


def error_code(error: Exception) -> int:
    return AUTH if isinstance(error, ActographError) and error.status in (401, 403) else ERROR


def emit(text: str) -> None:
    """Write results to stdout and flush, so that a pipe gets each line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def note(text: str) -> None:
    """Write a remark to stderr."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def ask(question: str) -> None:
    """Ask for a yes at the terminal. Raises InvalidRequest without a terminal, and if the answer is no."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise InvalidRequest(f"{question} Without a terminal, use --yes")
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise InvalidRequest("nothing was done")


def emit_item(item: Any, output: Format, text: Callable[[Any], str]) -> None:
    """Print one item as JSON or as the text that `text` makes of it."""
    emit(item.model_dump_json() if output is Format.JSON else text(item))


def emit_list(
    items: Iterable[Any],
    columns: Columns,
    output: Format,
    *,
    quiet: bool | None = None,
    limit: int | None = None,
    everything: bool | None = None,
    width: int | None = None,
) -> None:
    """Print the first `limit` items as a table, as JSON lines, or as full ids.

    Lines of the table are cut at `width`.
    """
    limit = None if everything else limit or DEFAULT_LIMIT
    rest = iter(items)
    shown = list(islice(rest, limit))
    if quiet:
        for item in shown:
            emit(item.id)
    elif output is Format.JSON:
        for item in shown:
            emit(item.model_dump_json())
    else:
        text = table(columns, shown)
        emit(text if width is None else "\n".join(cut(line, width) for line in text.splitlines()))
        if limit is not None and next(rest, None) is not None:
            note(f"only the first {limit}; show more with --limit")


def each(typed: Iterable[str], act: Callable[[str], Any], output: Format) -> None:
    """Act on each item and print its id, or the item as JSON. Failures do not stop the others."""
    code = OK
    for name in typed:
        try:
            done = act(name)
            emit(done.model_dump_json() if output is Format.JSON else done.id)
        except ActographError as error:
            note(f"{name}: {error}")
            code = max(code, error_code(error))
    end(code)


def table(columns: Columns, items: Iterable[Any]) -> str:
    """Render items with shortened ids."""

    def cell(header: str, value: object) -> object:
        return shorten(str(value)) if value and header.endswith(" ID") else value

    rows = [[cell(header, read(item)) for header, read in columns.items()] for item in items]
    return render(list(columns), rows)


def render(headers: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Render cells under headers; a header `>NAME` right-aligns its column. None is an empty cell."""
    lines = [[header.lstrip(">") for header in headers]]
    lines += [["" if cell is None else clean(str(cell)) for cell in row] for row in rows]
    widths = [max(_width(line[i]) for line in lines) for i in range(len(headers))]
    out = []
    for line in lines:
        spaces = [" " * (width - _width(cell)) for cell, width in zip(line, widths, strict=True)]
        cells = [
            space + cell if header.startswith(">") else cell + space
            for header, cell, space in zip(headers, line, spaces, strict=True)
        ]
        out.append("   ".join(cells).rstrip())
    return "\n".join(out)


def fields(values: Mapping[str, object], width: int) -> str:
    """Render one `name: value` per line, without empty values; names take `width` columns."""
    shown = {name: value for name, value in values.items() if value not in (None, "")}
    return "\n".join(f"{name + ':':<{width}} {clean(str(value))}" for name, value in shown.items())


def clean(text: str) -> str:
    """Replace control characters by spaces: text from elsewhere must not control the terminal."""
    return "".join(" " if unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp") else c for c in text)


def cut(text: str, columns: int) -> str:
    """Shorten a text to one line of `columns`; an ellipsis marks the cut."""
    line = clean(text)
    while _width(line) > columns:
        line = line[: max(0, min(len(line) - 2, columns - 1))] + "…"
    return line


def shorten(identifier: str) -> str:
    """Shorten an id to `job_0123456789ab`."""
    prefix, separator, digits = identifier.partition("_")
    return f"{prefix}{separator}{digits[:12]}"


def size(count: int) -> str:
    """Return a size such as `1.5 MB`, in powers of 1000."""
    from rich.filesize import decimal  # the parser starts without rich

    return decimal(count)


def age(created_at: float) -> str:
    """Return the time since `created_at` in its largest unit: `3m`, `2h`, `5d`."""
    seconds = int(max(0.0, time.time() - created_at))
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


def yes_no(value: bool | None) -> str:
    return "" if value is None else "yes" if value else "no"


def _width(text: str) -> int:
    """Return the terminal columns of a text: wide characters take two, combining ones none."""
    from rich.cells import cell_len

    return cell_len(text)
