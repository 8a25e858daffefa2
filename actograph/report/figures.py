"""Figures of reports as SVG and PNG, in colours that colour-blind readers can tell apart."""

import io
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


def _axes() -> tuple[Any, Any]:
    # not pyplot, which keeps figures in a global list
    module = package("matplotlib", "a figure", module="matplotlib.figure")
    figure = module.Figure(figsize=(7, 3.2), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", linewidth=0.4, alpha=0.6)
    axes.set_axisbelow(True)
    return figure, axes


def _legend(axes: Any, series: int) -> None:
    """Above the axes, where it hides nothing."""
    if series > 1:
        axes.figure.legend(fontsize=8, frameon=False, loc="outside upper left", ncols=3)


def _drawn(figure: Any, name: str, title: str) -> Figure:
    found = {}
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
