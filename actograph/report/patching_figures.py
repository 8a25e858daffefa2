"""Figures of patch jobs: the effect of each cell, by layer and position."""

from collections.abc import Mapping

from actograph.contract.analyses import visible
from actograph.contract.patching import PatchedCell, PatchingResult
from actograph.report import figures
from actograph.report.figures import Figure
from actograph.short_texts import shorten

_RUNS = {"denoise": "clean rows into the corrupted run", "noise": "corrupted rows into the clean run"}


def figure_of(result: PatchingResult, point: str) -> Figure:
    """Draw the effects of one point as colours.

    Raises:
        PackageMissing: matplotlib is not installed.
    """
    cells: Mapping[tuple[int, str, int | None], PatchedCell] = {
        (one.layer, one.position, one.head): one for one in result.cells if one.point == point
    }
    heads: list[int] | list[None] = result.heads or [None]
    columns = [(position, head) for position in result.positions for head in heads]
    rows = {
        str(layer): [
            cell.effect if (cell := cells.get((layer, *column))) is not None else None for column in columns
        ]
        for layer in result.layers
    }
    first = result.pairs[0]
    about = [] if first.answer is None else [visible(first.answer_text) or str(first.answer)]
    if first.against is not None:
        about.append(visible(first.against_text or "") or str(first.against))
    tokens = (
        " and ".join(about) if len({(one.answer, one.against) for one in result.pairs}) == 1 else "each pair"
    )
    metric = result.metric if first.answer is None else f"{result.metric.replace('_', ' ')} of {tokens}"
    count = len(result.pairs)
    title = (
        f"Patching {point}, {_RUNS[result.direction]}: {metric}, "
        f"n = {count} pair{'s' if count != 1 else ''}, job {shorten(result.job_id)}"
    )
    labels = [position if head is None else f"{position} head {head}" for position, head in columns]
    x = "position" if result.heads is None else "position and head"
    return figures.heatmap(f"patch_{point}", title, labels, rows, x=x, y="layer", unit="effect")
