"""Summaries of rows, built block by block: mean, maximum, last row, statistics.

A block is `x` [batch, points, rows, width] with a mask `valid` [batch, rows], or None if all rows count.
`of` summarises a block as a dict of tensors [batch, points, width or 1]; `merged` joins the summaries of
earlier and later rows. Only summaries are kept.

Moments are merged as Chan, Golub and LeVeque (1979) do for the second, and Pébay (2008, SAND2008-6212)
for the third and fourth, in float64.
"""

from dataclasses import dataclass
from typing import Protocol

import torch

from worker.engine.requests import Summary

#: statistics of a channel, by the name under which they are stored
STATISTICS = ("count", "mean", "variance", "min", "max", "rms", "kurtosis", "over")


class Summariser(Protocol):
    """A way to sum up rows."""

    def of(self, x: torch.Tensor, valid: torch.Tensor | None) -> Summary: ...

    def merged(self, earlier: Summary, later: Summary) -> Summary: ...

    def finished(self, summary: Summary, counts: torch.Tensor) -> Summary:
        """Stored tensors by name: [batch, points, width or 1]. `counts`: rows, [batch, points, 1], int64."""
        ...


class Mean:
    """The mean, accumulated in float32; named ""."""

    def of(self, x: torch.Tensor, valid: torch.Tensor | None) -> Summary:
        return {"sum": _masked(x, valid, 0).sum(dim=2, dtype=torch.float32)}

    def merged(self, earlier: Summary, later: Summary) -> Summary:
        return {"sum": earlier["sum"] + later["sum"]}

    def finished(self, summary: Summary, counts: torch.Tensor) -> Summary:
        return {"": summary["sum"] / counts.clamp(min=1)}


class Max:
    """The largest value of each channel; named ""."""

    def of(self, x: torch.Tensor, valid: torch.Tensor | None) -> Summary:
        return {"max": _masked(x, valid, -torch.inf).amax(dim=2)}

    def merged(self, earlier: Summary, later: Summary) -> Summary:
        return {"max": torch.maximum(earlier["max"], later["max"])}

    def finished(self, summary: Summary, counts: torch.Tensor) -> Summary:
        return {"": summary["max"]}


class Last:
    """The last row; named ""."""

    def of(self, x: torch.Tensor, valid: torch.Tensor | None) -> Summary:
        batch, points, rows, width = x.shape
        if valid is None:
            return {"last": x[:, :, -1].clone(), "has": x.new_ones(batch, points, 1, dtype=torch.bool)}
        place = torch.arange(rows, device=x.device).mul(valid).amax(dim=1)
        index = place.view(batch, 1, 1, 1).expand(batch, points, 1, width)
        has = valid.any(dim=1).view(batch, 1, 1).expand(batch, points, 1)
        return {"last": x.gather(2, index).squeeze(2), "has": has}

    def merged(self, earlier: Summary, later: Summary) -> Summary:
        last = torch.where(later["has"], later["last"], earlier["last"])
        return {"last": last, "has": earlier["has"] | later["has"]}

    def finished(self, summary: Summary, counts: torch.Tensor) -> Summary:
        return {"": summary["last"]}


@dataclass(frozen=True)
class Statistics:
    """Moments, extremes and a count of large magnitudes, per channel.

    The variance is divided by the number of rows. The kurtosis is excess kurtosis (0 for a normal
    distribution), and NaN if a channel does not vary. `over` counts |x| > threshold; it needs a threshold.
    """

    threshold: float | None = None

    def of(self, x: torch.Tensor, valid: torch.Tensor | None) -> Summary:
        batch, points, rows, _ = x.shape
        values = x.double()
        if valid is None:
            n = values.new_full((batch, points, 1), rows)
        else:
            n = valid.sum(dim=1, dtype=torch.float64).view(batch, 1, 1).expand(batch, points, 1)
        mean = _masked(values, valid, 0).sum(dim=2) / n.clamp(min=1)
        apart = _masked(values - mean.unsqueeze(2), valid, 0)
        square = apart * apart
        summary = {
            "n": n,
            "mean": mean,
            "m2": square.sum(dim=2),
            "m3": (square * apart).sum(dim=2),
            "m4": (square * square).sum(dim=2),
            "min": _masked(values, valid, torch.inf).amin(dim=2),
            "max": _masked(values, valid, -torch.inf).amax(dim=2),
        }
        if self.threshold is not None:
            summary["over"] = (_masked(values, valid, 0).abs() > self.threshold).sum(dim=2)
        return summary

    def merged(self, earlier: Summary, later: Summary) -> Summary:
        a, b = earlier["n"], later["n"]
        n = a + b
        safe = n.clamp(min=1)
        delta = later["mean"] - earlier["mean"]
        step = delta / safe
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

    def finished(self, summary: Summary, counts: torch.Tensor) -> Summary:
        n = summary["n"].clamp(min=1)
        variance = summary["m2"] / n
        largest = torch.maximum(summary["min"].abs(), summary["max"].abs())
        # a spread within rounding does not count
        varies = variance > (16 * torch.finfo(torch.float64).eps * largest) ** 2
        excess = n * summary["m4"] / summary["m2"].square() - 3
        found = {
            "count": counts,
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


def _masked(x: torch.Tensor, valid: torch.Tensor | None, filler: float) -> torch.Tensor:
    """`x` with `filler` in rows that do not count; padding may be NaN, so it is replaced."""
    if valid is None:
        return x
    return x.masked_fill(~valid[:, None, :, None], filler)
