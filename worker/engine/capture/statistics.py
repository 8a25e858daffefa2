"""Summaries of rows, built block by block: mean, maximum, last row, statistics.

A block is `x` [points, rows, width] with one row at least. `of` summarises a block as a dict of tensors
[points, width or 1]; `merged` joins the summaries of earlier and later rows. Only summaries are kept.

Moments are merged as Chan, Golub and LeVeque (1979) do for the second, and Pébay (2008, SAND2008-6212)
for the third and fourth, in float64.
"""

from dataclasses import dataclass
from typing import Protocol

import torch

#: a summary of rows by the name of its part: [points, width or 1]
Summary = dict[str, torch.Tensor]


class Summariser(Protocol):
    """A way to sum up rows."""

    def of(self, x: torch.Tensor) -> Summary: ...

    def merged(self, earlier: Summary, later: Summary) -> Summary: ...

    def finished(self, summary: Summary, count: int) -> Summary:
        """Stored tensors by name: [points, width or 1]. `count`: of rows."""
        ...


class Mean:
    """The mean, accumulated in float32; named ""."""

    def of(self, x: torch.Tensor) -> Summary:
        return {"sum": x.sum(dim=1, dtype=torch.float32)}

    def merged(self, earlier: Summary, later: Summary) -> Summary:
        return {"sum": earlier["sum"] + later["sum"]}

    def finished(self, summary: Summary, count: int) -> Summary:
        return {"": summary["sum"] / max(count, 1)}


class Max:
    """The largest value of each channel; named ""."""

    def of(self, x: torch.Tensor) -> Summary:
        return {"max": x.amax(dim=1)}

    def merged(self, earlier: Summary, later: Summary) -> Summary:
        return {"max": torch.maximum(earlier["max"], later["max"])}

    def finished(self, summary: Summary, count: int) -> Summary:
        return {"": summary["max"]}


class Last:
    """The last row; named ""."""

    def of(self, x: torch.Tensor) -> Summary:
        return {"last": x[:, -1].clone()}

    def merged(self, earlier: Summary, later: Summary) -> Summary:
        return later

    def finished(self, summary: Summary, count: int) -> Summary:
        return {"": summary["last"]}


@dataclass(frozen=True)
class Statistics:
    """Moments, extremes and a count of large magnitudes, per channel.

    The variance is divided by the number of rows. The kurtosis is excess kurtosis (0 for a normal
    distribution), and NaN if a channel does not vary. `over` counts |x| > threshold; it needs a threshold.
    """

    threshold: float | None = None

    def of(self, x: torch.Tensor) -> Summary:
        values = x.double()
        mean = values.mean(dim=1)
        apart = values - mean.unsqueeze(1)
        square = apart * apart
        summary = {
            "n": values.new_full((len(x), 1), x.shape[1]),
            "mean": mean,
            "m2": square.sum(dim=1),
            "m3": (square * apart).sum(dim=1),
            "m4": (square * square).sum(dim=1),
            "min": values.amin(dim=1),
            "max": values.amax(dim=1),
        }
        if self.threshold is not None:
            summary["over"] = (values.abs() > self.threshold).sum(dim=1)
        return summary

    def merged(self, earlier: Summary, later: Summary) -> Summary:
        a, b = earlier["n"], later["n"]
        n = a + b
        delta = later["mean"] - earlier["mean"]
        step = delta / n
        step2 = step * step
        cross = delta * step * a * b
        summary = {
            "n": n,
            "mean": earlier["mean"] + step * b,
            "m2": earlier["m2"] + later["m2"] + cross,
            "m3": earlier["m3"]
            + later["m3"]
            + cross * step * (a - b)
            + 3 * step * (a * later["m2"] - b * earlier["m2"]),
            "m4": earlier["m4"]
            + later["m4"]
            + cross * step2 * (a * a - a * b + b * b)
            + 6 * step2 * (a * a * later["m2"] + b * b * earlier["m2"])
            + 4 * step * (a * later["m3"] - b * earlier["m3"]),
            "min": torch.minimum(earlier["min"], later["min"]),
            "max": torch.maximum(earlier["max"], later["max"]),
        }
        if self.threshold is not None:
            summary["over"] = earlier["over"] + later["over"]
        return summary

    def finished(self, summary: Summary, count: int) -> Summary:
        n = summary["n"]
        variance = summary["m2"] / n
        largest = torch.maximum(summary["min"].abs(), summary["max"].abs())
        # a spread within rounding does not count
        varies = variance > (16 * torch.finfo(torch.float64).eps * largest) ** 2
        excess = n * summary["m4"] / summary["m2"].square() - 3
        found = {
            "count": torch.full_like(n, count, dtype=torch.int64),
            "mean": summary["mean"],
            "variance": variance,
            "min": summary["min"],
            "max": summary["max"],
            "rms": (summary["mean"].square() + variance).sqrt(),
            "kurtosis": torch.where(varies, excess, torch.nan),
        }
        if self.threshold is not None:
            found["over"] = summary["over"]
        return found
