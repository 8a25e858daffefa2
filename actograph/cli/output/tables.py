"""Plain tables like those of `docker ps`, and short forms of ids, sizes and times."""

import time
import unicodedata
from collections.abc import Mapping, Sequence

GAP = "   "
SHORT_ID_DIGITS = 12
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def render(headers: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[str] = ()) -> str:
    """Render a table; the columns in `right` are right-aligned."""
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


def fields(values: Mapping[str, str], width: int) -> str:
    """Render one `name: value` per line, without empty values; names take `width` columns."""
    return "\n".join(f"{name + ':':<{width}} {clean(text)}" for name, text in values.items() if text)


def clean(text: str) -> str:
    """Replace control characters by spaces: text from elsewhere must not control the terminal."""
    return "".join(" " if unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp") else c for c in text)


def cut(text: str, columns: int) -> str:
    """Shorten a text to one line of `columns`; an ellipsis marks the cut."""
    line = clean(text)
    while _width(line) > columns:
        line = line[: max(0, min(len(line) - 2, columns - 1))] + "…"
    return line


def shorten(identifier: str, *, full: bool = False) -> str:
    """Shorten an id to `job_0123456789ab`."""
    prefix, separator, digits = identifier.partition("_")
    return identifier if full else f"{prefix}{separator}{digits[:SHORT_ID_DIGITS]}"


def size(count: int) -> str:
    """Return a size such as `1.5 MB`, in powers of 1000."""
    value, unit = float(count), 0
    # 999.95 would be rounded to a thousand of its unit
    while value >= (999.5 if unit == 0 else 999.95) and unit < len(_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{count} B" if unit == 0 else f"{value:.1f} {_UNITS[unit]}"


def age(created_at: float, now: float | None = None) -> str:
    """Return the time since `created_at` in its largest unit: `3m`, `2h`, `5d`."""
    seconds = max(0.0, (time.time() if now is None else now) - created_at)
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{int(seconds // length)}{unit}"
    return f"{int(seconds)}s"


def figure(value: float | None) -> str:
    """Format a score or its error like lm-eval."""
    return "N/A" if value is None else f"{value:.4f}"


def _width(text: str) -> int:
    """Return the terminal columns of a text: wide characters take two, combining ones none."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text
    )
