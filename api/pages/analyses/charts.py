"""Charts as coordinates: lines over hooks, and maps of features and layers. Templates draw them as SVG."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 720, 260
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 12, 34
#: most labels below a chart
_LABELS = 16
_TICKS = 4
#: width of one cell of a map, and of the names before it
CELL, NAMES = 18, 72


@dataclass(frozen=True, kw_only=True)
class Series:
    """One line; a value of None, or one that the axis cannot show, breaks it."""

    name: str
    values: Sequence[float | None]
    #: ends of an interval around each value
    lows: Sequence[float | None] = ()
    highs: Sequence[float | None] = ()


@dataclass(frozen=True, slots=True)
class Mark:
    """One point of a line."""

    x: float
    y: float
    label: str
    value: float


@dataclass(frozen=True, slots=True)
class Tick:
    """A place on an axis and its text."""

    at: float
    text: str


class LineChart:
    """Lines over named places, such as layers."""

    def __init__(
        self,
        title: str,
        labels: Sequence[str],
        series: Sequence[Series],
        *,
        limits: tuple[float, float] | None = None,
        is_log: bool = False,
    ) -> None:
        """`limits`: ends of the value axis, by default those of the values."""
        self.title = title
        self.series = series
        self._labels = labels
        self._is_log = is_log
        self._low, self._high = self._limits() if limits is None else limits

    def _limits(self) -> tuple[float, float]:
        known = [
            self._scaled(value)
            for one in self.series
            for value in (*one.values, *one.lows, *one.highs)
            if self._is_shown(value)
        ]
        low, high = min(known, default=0.0), max(known, default=1.0)
        room = (high - low) * 0.05 or abs(high) * 0.05 or 1.0
        return low - room, high + room

    def _is_shown(self, value: float | None) -> bool:
        return value is not None and math.isfinite(value) and (value > 0 or not self._is_log)

    def _scaled(self, value: float | None) -> float:
        assert value is not None
        return math.log10(value) if self._is_log else value

    def _x(self, place: int) -> float:
        width = WIDTH - LEFT - RIGHT
        return round(LEFT + width * (place + 0.5) / max(1, len(self._labels)), 1)

    def _y(self, scaled: float) -> float:
        share = (scaled - self._low) / (self._high - self._low)
        return round(HEIGHT - BOTTOM - min(max(share, 0.0), 1.0) * (HEIGHT - TOP - BOTTOM), 1)

    def places(self) -> list[Tick]:
        """Labels below the chart, as many as fit."""
        step = -(-len(self._labels) // _LABELS) or 1
        return [Tick(self._x(i), text) for i, text in enumerate(self._labels) if i % step == 0]

    def ticks(self) -> list[Tick]:
        """Round values beside the chart; powers of ten on a logarithmic axis if there are two."""
        low, high = self._low, self._high
        if self._is_log:
            powers = range(math.ceil(low), math.floor(high) + 1)
            if len(powers) > 1:
                step = -(-len(powers) // _TICKS)
                return [Tick(self._y(power), f"{10.0**power:g}") for power in powers[::step]]
            low, high = 10**low, 10**high
        size = _round_step((high - low) / _TICKS)
        values = [n * size for n in range(math.ceil(low / size - 1e-9), math.floor(high / size + 1e-9) + 1)]
        return [
            Tick(self._y(self._scaled(value)), f"{value:.4g}") for value in values if self._is_shown(value)
        ]

    def marks(self, one: Series) -> list[Mark]:
        """Points of a line."""
        return [
            Mark(self._x(i), self._y(self._scaled(value)), self._labels[i], value)
            for i, value in enumerate(one.values)
            if value is not None and self._is_shown(value)
        ]

    def lines(self, one: Series) -> list[str]:
        """Polylines of a line, one for each run of shown values."""
        runs: list[list[str]] = [[]]
        for place, value in enumerate(one.values):
            if self._is_shown(value):
                runs[-1].append(f"{self._x(place)},{self._y(self._scaled(value))}")
            elif runs[-1]:
                runs.append([])
        return [" ".join(run) for run in runs if len(run) > 1]

    def bars(self, one: Series) -> list[tuple[float, float, float]]:
        """Intervals around the values: x, and the two ends."""
        return [
            (self._x(i), self._y(self._scaled(low)), self._y(self._scaled(high)))
            for i, (low, high) in enumerate(zip(one.lows, one.highs, strict=True))
            if self._is_shown(low) and self._is_shown(high)
        ]


@dataclass(frozen=True, kw_only=True)
class FeatureMap:
    """A grid of features (rows) and layers (columns) with the cells that are set."""

    title: str
    layers: Sequence[int]
    #: name of a row and its set layers
    rows: Sequence[tuple[str, Sequence[int]]]
    note: str = ""

    @property
    def width(self) -> int:
        return NAMES + CELL * len(self.layers)

    @property
    def height(self) -> int:
        return CELL * (len(self.rows) + 1)

    def columns(self) -> list[Tick]:
        """Numbers of layers, as many as fit."""
        step = -(-len(self.layers) // 32) or 1
        return [
            Tick(NAMES + CELL * (i + 0.5), str(layer)) for i, layer in enumerate(self.layers) if i % step == 0
        ]

    def names(self) -> list[Tick]:
        """Names of rows."""
        return [Tick(CELL * (i + 1.7), name) for i, (name, _) in enumerate(self.rows)]

    def cells(self) -> list[tuple[int, int, str]]:
        """Set cells: left, top, and a text."""
        places = {layer: i for i, layer in enumerate(self.layers)}
        return [
            (NAMES + CELL * places[layer], CELL * (row + 1), f"feature {name}, layer {layer}")
            for row, (name, layers) in enumerate(self.rows)
            for layer in layers
            if layer in places
        ]


def _round_step(step: float) -> float:
    """The nearest larger one of 1, 2 and 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= step * (1 - 1e-9))
