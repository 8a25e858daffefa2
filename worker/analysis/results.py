"""Results of an analysis: a JSON summary, CSV files and figures."""

import csv
import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

#: colours that colour-blind readers can tell apart (Okabe and Ito 2008)
OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#000000")


@dataclass(frozen=True, kw_only=True)
class Results:
    """Results of one analysis job.

    Attributes:
        summary: the answer of `GET /v1/jobs/{id}/results`, as JSON values.
        files: name -> bytes, listed there and read through /v1/files.
    """

    summary: Mapping[str, Any]
    files: Mapping[str, bytes] = field(default_factory=dict)


def plain(value: Any) -> Any:
    """The value as JSON: numpy's numbers as Python's, and null for numbers that are not finite."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [plain(item) for item in value]
    if isinstance(value, np.bool_ | bool):
        return bool(value)
    if isinstance(value, np.integer):
        return int(value)
    if isinstance(value, np.floating | float):
        return float(value) if math.isfinite(value) else None
    return value


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> bytes:
    """A CSV file."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue().encode()


def figures(name: str, figure: Any) -> dict[str, bytes]:
    """A matplotlib figure as NAME.png and NAME.svg."""
    found = {}
    # names are shown as they are: a dollar sign begins no formula
    for text in figure.findobj(lambda artist: hasattr(artist, "set_parse_math")):
        text.set_parse_math(False)
    for suffix in ("png", "svg"):
        data = io.BytesIO()
        # no date: the same numbers give the same bytes
        figure.savefig(
            data,
            format=suffix,
            dpi=150,
            metadata={"Date": None} if suffix == "svg" else {},
            bbox_inches="tight",
        )
        found[f"{name}.{suffix}"] = data.getvalue()
    return found


def new_figure(width: float, height: float) -> Any:
    """A figure of this size in inches, without a display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure
