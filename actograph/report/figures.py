"""Figures of reports as SVG and PNG, in colours that colour-blind readers can tell apart."""

import io
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from actograph.contract.errors import package

#: Okabe & Ito, Color universal design (2008), without their yellow, which is too light on white
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_MOST_TICKS = 40
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


@dataclass(frozen=True)
class Figure:
    """One figure in both formats."""

    name: str
    title: str
    svg: bytes
    png: bytes


@dataclass(frozen=True)
class Bar:
    """A value, and its interval if known."""

    label: str
    value: float
    low: float | None = None
    high: float | None = None


def bars(name: str, title: str, groups: Mapping[str, Sequence[Bar]]) -> Figure:
    """Draw values by series, side by side for each label."""
    figure, axes = _axes()
    labels = list(dict.fromkeys(bar.label for found in groups.values() for bar in found))
    width = 0.8 / max(1, len(groups))
    for number, (series, found) in enumerate(groups.items()):
        places = [labels.index(bar.label) + (number - (len(groups) - 1) / 2) * width for bar in found]
        low = [0 if bar.low is None else max(0.0, bar.value - bar.low) for bar in found]
        high = [0 if bar.high is None else max(0.0, bar.high - bar.value) for bar in found]
        axes.bar(
            places, [bar.value for bar in found], width * 0.9, yerr=[low, high], capsize=2, label=series,
            color=COLOURS[number % len(COLOURS)], edgecolor="black", linewidth=0.5,
            hatch=("", "//", "..", "xx")[number % 4],
        )  # fmt: skip
    axes.set_xticks(range(len(labels)), labels, rotation=20 if len(labels) > 4 else 0)
    axes.set_xlabel("condition")
    axes.set_ylabel("value")
    _legend(axes, len(groups))
    return _drawn(figure, name, title)


def histogram(name: str, title: str, values: Mapping[str, Sequence[float]], unit: str) -> Figure:
    """Draw distributions as steps."""
    figure, axes = _axes()
    highest = max((max(found) for found in values.values() if found), default=1)
    lowest = min((min(found) for found in values.values() if found), default=0)
    for number, (series, found) in enumerate(values.items()):
        axes.hist(
            found, bins=30, range=(lowest, max(highest, lowest + 1)), histtype="step", label=series,
            color=COLOURS[number % len(COLOURS)], linestyle=("-", "--", ":", "-.")[number % 4], linewidth=1.5,
        )  # fmt: skip
    axes.set_xlabel(unit)
    axes.set_ylabel("samples")
    _legend(axes, len(values))
    return _drawn(figure, name, title)


def curves(name: str, title: str, lines: Mapping[str, Sequence[Bar]], unit: str) -> Figure:
    """Draw values over the labels, such as layers, with their intervals as bands."""
    figure, axes = _axes()
    labels = list(dict.fromkeys(bar.label for found in lines.values() for bar in found))
    for number, (series, found) in enumerate(lines.items()):
        colour = COLOURS[number % len(COLOURS)]
        places = [labels.index(bar.label) for bar in found]
        style = {"marker": MARKERS[number % len(MARKERS)], "linestyle": "-" if number == 0 else "--"}
        axes.plot(places, [bar.value for bar in found], label=series, color=colour, **style)
        if all(bar.low is not None and bar.high is not None for bar in found):
            axes.fill_between(
                places, [bar.low for bar in found], [bar.high for bar in found], color=colour, alpha=0.15
            )
    step = -(-len(labels) // _MOST_TICKS)
    rotation = 30 if len(labels) > 6 and not labels[0].isdecimal() else 0
    axes.set_xticks(range(0, len(labels), step), labels[::step], rotation=rotation)
    axes.set_xlabel("layer" if labels[0].isdecimal() else "hook")
    axes.set_ylabel(unit)
    _legend(axes, len(lines))
    return _drawn(figure, name, title)


def outlier_map(name: str, title: str, features: Mapping[int, Sequence[int]]) -> Figure:
    """Draw the layers in which each outlier feature occurs."""
    figure, axes = _axes()
    order = sorted(features)
    axes.scatter(
        [place for place, feature in enumerate(order) for _ in features[feature]],
        [layer for feature in order for layer in features[feature]],
        marker="s", color=COLOURS[0], s=18,
    )  # fmt: skip
    step = -(-len(order) // _MOST_TICKS)
    axes.set_xticks(range(0, len(order), step), list(map(str, order[::step])), rotation=90)
    layers = [layer for found in features.values() for layer in found]
    axes.set_ylim(min(layers) - 0.5, max(layers) + 0.5)
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("feature")
    axes.set_ylabel("layer")
    return _drawn(figure, name, title)


def grid(
    name: str,
    title: str,
    columns: Sequence[str],
    rows: Mapping[str, Sequence[tuple[str, float]]],
    *,
    x: str,
    y: str,
    unit: str,
) -> Figure:
    """Draw a text and a value from 0 to 1 in each cell, the last row on top.

    Args:
        rows: label -> text and value for each column.
        x, y, unit: labels of the axes and of the values.
    """
    figure, axes = _axes(width=2.2 + 0.62 * len(columns), height=1.6 + 0.26 * len(rows))
    axes.grid(visible=False)
    values = [[value for _, value in cells] for cells in rows.values()]
    image = axes.imshow(values, cmap="Blues", vmin=0, vmax=1, aspect="auto", origin="lower")
    for row, cells in enumerate(rows.values()):
        for column, (text, value) in enumerate(cells):
            colour = "white" if value > 0.6 else "black"
            style = {"ha": "center", "va": "center", "fontsize": 7, "color": colour}
            axes.text(column, row, _drawable(text), **style)
    axes.set_xticks(range(len(columns)), map(_drawable, columns), rotation=60, ha="right", fontsize=7)
    axes.set_yticks(range(len(rows)), list(rows), fontsize=7)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    figure.colorbar(image, ax=axes, label=unit, pad=0.01)
    return _drawn(figure, name, title)


def heatmap(
    name: str,
    title: str,
    columns: Sequence[str],
    rows: Mapping[str, Sequence[float | None]],
    *,
    x: str,
    y: str,
    unit: str,
) -> Figure:
    """Draw values around 0 as colours, the last row on top; cells without one stay white.

    Args:
        rows: label -> a value for each column.
        x, y, unit: labels of the axes and of the values.
    """
    wide = len(columns) > _MOST_TICKS
    width = 2.2 + (0.08 if wide else 0.36) * min(len(columns), 300)
    figure, axes = _axes(width=max(4.0, width), height=1.6 + 0.22 * min(len(rows), 60))
    axes.grid(visible=False)
    values = [[math.nan if one is None else one for one in cells] for cells in rows.values()]
    known = [abs(one) for cells in rows.values() for one in cells if one is not None]
    # one cell far beyond the others would take the colour from all of them
    most = min(max([1.0, *known]), 2.0)
    style = {"cmap": "RdBu_r", "vmin": -most, "vmax": most, "aspect": "auto", "origin": "lower"}
    image = axes.imshow(values, **style)
    step, up = -(-len(columns) // _MOST_TICKS), -(-len(rows) // _MOST_TICKS)
    labels = list(map(_drawable, columns[::step]))
    axes.set_xticks(range(0, len(columns), step), labels, rotation=60, ha="right", fontsize=7)
    axes.set_yticks(range(0, len(rows), up), list(rows)[::up], fontsize=7)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    figure.colorbar(
        image, ax=axes, label=unit, pad=0.01, extend="both" if max(known, default=0) > most else "neither"
    )
    return _drawn(figure, name, title)


def _drawable(text: str) -> str:
    """A text in which characters that the font lacks are boxes; matplotlib would warn of each."""
    fonts = package("matplotlib", "a figure", module="matplotlib.font_manager")
    font = fonts.get_font(fonts.findfont(fonts.FontProperties()))
    return "".join(one if font.get_char_index(ord(one)) else "□" for one in text)


def _axes(width: float = 7, height: float = 3.6) -> tuple[Any, Any]:
    # not pyplot, which keeps figures in a global list
    module = package("matplotlib", "a figure", module="matplotlib.figure")
    figure = module.Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", linewidth=0.4, alpha=0.6)
    axes.set_axisbelow(True)
    return figure, axes


def _legend(axes: Any, series: int) -> None:
    """Below the axes, where it hides nothing."""
    if series > 1:
        axes.figure.legend(fontsize=8, frameon=False, loc="outside lower left", ncols=3)


def _drawn(figure: Any, name: str, title: str) -> Figure:
    found = {}
    figure.suptitle("\n".join(textwrap.wrap(title, int(14 * figure.get_figwidth()))), fontsize=9)
    # names are shown as they are: a dollar sign begins no formula
    for text in figure.findobj(lambda artist: hasattr(artist, "set_parse_math")):
        text.set_parse_math(False)
    matplotlib = package("matplotlib", "a figure")
    with matplotlib.rc_context({"svg.hashsalt": name}):
        for form, metadata in (("svg", {"Date": None}), ("png", {})):
            target = io.BytesIO()
            figure.savefig(target, format=form, dpi=150, metadata=metadata)
            found[form] = target.getvalue()
    return Figure(name, title, found["svg"], found["png"])
