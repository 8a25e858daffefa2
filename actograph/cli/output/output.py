"""Output of the command line: results to stdout, notes to stderr."""

import sys
from collections.abc import Iterable
from enum import StrEnum
from typing import TYPE_CHECKING

from actograph.contract.errors import InvalidRequest

if TYPE_CHECKING:
    from pydantic import BaseModel


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"


def emit(text: str) -> None:
    """One line or block of results, at once visible to whoever reads the pipe."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def note(text: str) -> None:
    """A remark for the person at the terminal."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def ask(question: str) -> None:
    """Have the person at the terminal agree.

    Raises:
        InvalidRequest: there is nobody to ask, or they do not agree.
    """
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise InvalidRequest(f"{question} Say --yes to agree where there is no terminal")
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise InvalidRequest("nothing was done")


def emit_json_lines(items: "Iterable[BaseModel]") -> None:
    """One JSON object per line."""
    for item in items:
        emit(item.model_dump_json())
