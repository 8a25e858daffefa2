"""Plain tables like those of `docker ps`, and the short forms of what stands in them."""

import time
import unicodedata
from collections.abc import Sequence

GAP = "   "
SHORT_ID_DIGITS = 12
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def render(headers: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = ()) -> str:
    """Columns as wide as their widest cell; those named in `right` are set flush right."""
    cells = [[clean(cell) for cell in row] for row in rows]
    lines = [list(headers), *cells]
    widths = [max(_width(line[i]) for line in lines) for i in range(len(headers))]
    out = []
    for line in lines:
        padded = []
        for header, cell, width in zip(headers, line, widths, strict=True):
            space = " " * (width - _width(cell))
            padded.append(space + cell if header in right else cell + space)
        out.append(GAP.join(padded).rstrip())
    return "\n".join(out)


def clean(text: str) -> str:
    """One line without control characters: text of others must not steer the terminal."""
    return "".join(" " if unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp") else c for c in text)


def cut(text: str, columns: int) -> str:
    """The text in one line of at most so many columns, which says so where it is cut."""
    line = clean(text)
    while _width(line) > columns:
        line = line[: max(0, min(len(line) - 2, columns - 1))] + "…"
    return line


def shorten(identifier: str, *, full: bool = False) -> str:
    """`job_0123456789ab` for a whole id."""
    prefix, separator, digits = identifier.partition("_")
    return identifier if full else f"{prefix}{separator}{digits[:SHORT_ID_DIGITS]}"


def size(count: int) -> str:
    """`1.5 MB`; powers of 1000, as disks are sold."""
    value, unit = float(count), 0
    # 999.95 would be rounded to a thousand of its unit
    while value >= (999.5 if unit == 0 else 999.95) and unit < len(_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{count} B" if unit == 0 else f"{value:.1f} {_UNITS[unit]}"


def age(created_at: float, now: float | None = None) -> str:
    """Time since then, in its largest unit: `3m`, `2h`, `5d`."""
    seconds = max(0.0, (time.time() if now is None else now) - created_at)
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{int(seconds // length)}{unit}"
    return f"{int(seconds)}s"


def figure(value: float | None) -> str:
    """A score or its error as lm-eval prints it."""
    return "N/A" if value is None else f"{value:.4f}"


def _width(text: str) -> int:
    """Terminal columns: wide characters take two, combining ones none."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )
