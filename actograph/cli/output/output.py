"""Output of the command line: results to stdout, notes to stderr."""

import sys
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from itertools import islice
from typing import TYPE_CHECKING, Any

from actograph.cli.output import tables
from actograph.contract.errors import InvalidRequest

if TYPE_CHECKING:
    from pydantic import BaseModel


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"


def emit(text: str) -> None:
    """Write results to stdout and flush, so that a pipe gets each line at once."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def note(text: str) -> None:
    """Write a remark to stderr."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def ask(question: str) -> None:
    """Ask for a yes at the terminal.

    Raises:
        InvalidRequest: there is no terminal, or the answer is no.
    """
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise InvalidRequest(f"{question} Without a terminal, use --yes")
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise InvalidRequest("nothing was done")


def emit_json_lines(items: "Iterable[BaseModel]") -> None:
    """Print one JSON object per line."""
    for item in items:
        emit(item.model_dump_json())


def emit_list(
    items: Iterable[Any],
    table: Callable[[Sequence[Any]], str],
    output: Format,
    *,
    quiet: bool = False,
    full: bool = True,
    limit: int | None = None,
) -> None:
    """Print the first `limit` items as a table, as JSON lines, or as ids if `quiet`.

    Args:
        table: renders the items.
        full: print ids in full.
        limit: None prints all items. If there are more, a note below the table says so.
    """
    rest = iter(items)
    shown = list(islice(rest, limit))
    if quiet:
        for item in shown:
            emit(tables.shorten(item.id, full=full))
    elif output is Format.JSON:
        emit_json_lines(shown)
    else:
        emit(table(shown))
        if limit is not None and next(rest, None) is not None:
            note(f"only the first {limit}; show more with --limit")
