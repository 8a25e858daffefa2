"""Summaries of all points of a batch, updated on the device with every block of rows that passes."""

from collections.abc import Sequence

import torch

from actograph.contract.errors import CaptureFailed
from worker.engine.locations import Point
from worker.engine.requests import EarlierRows, Reduce, RowChunk, RowShaping, Summary, SummedRows
from worker.engine.rows.row_writer import stored_dtype
from worker.engine.rows.statistics import Last, Max, Mean, Statistics, Summariser

#: bytes of one float64 copy of rows; longer blocks are summed up in pieces
_PIECE_BYTES = 32 << 20
_REDUCERS: dict[Reduce, type[Mean] | type[Max] | type[Last]] = {"mean": Mean, "max": Max, "last": Last}


class Summaries:
    """Reductions and statistics of the rows of a batch.

    Args:
        points: points of the stream.
        batch: number of samples.
        dtype: dtype of reduced rows; None keeps that of the rows. Statistics are float64 and int64.
        earlier: summaries of earlier turns, one per sample; empty if no sample has any.
    """

    def __init__(
        self,
        points: Sequence[Point],
        *,
        batch: int,
        shaping: RowShaping,
        dtype: torch.dtype | None,
        earlier: Sequence[EarlierRows | None] = (),
    ) -> None:
        self._earlier = earlier
        self._points = points
        self._batch = batch
        self._dtype = dtype
        self._reduces = shaping.reduce != "none"
        self._numbers_only = shaping.reduce in ("mean", "max") or shaping.statistics is not None
        self._kinds: list[Summariser] = []
        if shaping.reduce != "none":
            self._kinds.append(_REDUCERS[shaping.reduce]())
        if shaping.statistics is not None:
            self._kinds.append(Statistics(shaping.statistics.threshold))
        self._counts = [[0] * batch for _ in points]
        #: points -> one summary per kind; a point is in one tuple only
        self._known: dict[tuple[int, ...], list[Summary]] = {}
        self._made_of: dict[int, tuple[int, torch.dtype, torch.device]] = {}

    def begin(self, point: int, tensor: torch.Tensor) -> None:
        """Record a point's width and dtype, from any rows of it [..., width].

        Raises:
            CaptureFailed: the point holds integers (expert indices), which have no mean.
        """
        if self._numbers_only and not tensor.is_floating_point():
            raise CaptureFailed(
                f"{self._points[point].hooks[0]} holds integers: it has no mean, maximum or statistics. "
                "Capture it in a job without reduce and stats, or with reduce: last"
            )
        self._made_of[point] = (tensor.shape[-1], tensor.dtype, tensor.device)

    def of_strip(self, point: int, rows: torch.Tensor, starts: Sequence[int]) -> None:
        """Rows of one point, [batch, rows, width]: sample b has those from `starts[b]` on."""
        count = rows.shape[1]
        valid = None
        if any(starts):
            valid = torch.arange(count) >= torch.tensor(starts)[:, None]
        self._add((point,), rows.unsqueeze(1), valid, [count - start for start in starts])

    def of_steps(self, points: Sequence[int], block: torch.Tensor, counts: Sequence[int]) -> None:
        """Rows of several points, [rows, batch, points, width]: sample b has the first `counts[b]`."""
        rows = block.permute(1, 2, 0, 3)
        valid = None
        if min(counts) < rows.shape[2]:
            valid = torch.arange(rows.shape[2]) < torch.tensor(counts)[:, None]
        self._add(tuple(points), rows, valid, counts)

    def _add(
        self, points: tuple[int, ...], rows: torch.Tensor, valid: torch.Tensor | None, counts: Sequence[int]
    ) -> None:
        if not rows.shape[2]:
            return
        for point in points:
            self._counts[point] = [a + b for a, b in zip(self._counts[point], counts, strict=True)]
        if valid is not None:
            valid = valid.to(rows.device)
        size = max(1, _PIECE_BYTES // (8 * rows.shape[0] * rows.shape[1] * rows.shape[3]))
        for start in range(0, rows.shape[2], size):
            piece = rows[:, :, start : start + size]
            mask = None if valid is None else valid[:, start : start + size]
            new = [kind.of(piece, mask) for kind in self._kinds]
            old = self._taken(points)
            if old is not None:
                new = [k.merged(o, n) for k, o, n in zip(self._kinds, old, new, strict=True)]
            self._known[points] = new

    def _taken(self, points: tuple[int, ...]) -> list[Summary] | None:
        """Take the summaries of these points together, joined from those of single points."""
        if points in self._known:
            return self._known.pop(points)
        single = [self._known.pop((point,), None) for point in points]
        if all(summary is None for summary in single):
            return None
        parts = [s if s is not None else self._nothing(p) for p, s in zip(points, single, strict=True)]
        return [
            {name: torch.cat([part[kind][name] for part in parts], dim=1) for name in parts[0][kind]}
            for kind in range(len(self._kinds))
        ]

    def _nothing(self, point: int) -> list[Summary]:
        width, dtype, device = self._made_of[point]
        row = torch.zeros(self._batch, 1, 1, width, dtype=dtype, device=device)
        return [
            kind.of(row, torch.zeros(self._batch, 1, dtype=torch.bool, device=device)) for kind in self._kinds
        ]

    def chunks(self) -> list[dict[str, RowChunk]]:
        """Per sample: tensor name -> one row, or no row if no row was chosen.

        A reduced row has its hook's name; a statistic is `<hook>.<its name>`.
        """
        made: list[dict[str, RowChunk]] = [{} for _ in range(self._batch)]
        known = dict(self._known)
        for point in range(len(self._points)):
            if not any(point in points for points in known):
                known[(point,)] = self._nothing(point)
        for points, summaries in known.items():
            counts = torch.tensor([self._counts[p] for p in points]).T.unsqueeze(2)  # [batch, points, 1]
            on_host = [{name: value.cpu() for name, value in summary.items()} for summary in summaries]
            if self._earlier:
                on_host = self._with_earlier(points, on_host, counts)
            for kind, summary in zip(self._kinds, on_host, strict=True):
                for name, values in kind.finished(summary, counts).items():
                    for place, point in enumerate(points):
                        self._place(made, point, name, values[:, place], counts[:, place, 0].tolist())
        return made

    def _with_earlier(
        self, points: Sequence[int], summaries: Sequence[Summary], counts: torch.Tensor
    ) -> list[Summary]:
        """Add earlier rows to the summaries and (in place) the counts; record both for the next turn."""
        merged = [{name: value.clone() for name, value in summary.items()} for summary in summaries]
        for sample, earlier in enumerate(self._earlier):
            if earlier is None:
                continue
            for place, point in enumerate(points):
                hook = self._points[point].hooks[0]
                here = (slice(sample, sample + 1), slice(place, place + 1))
                own = [{name: value[here].clone() for name, value in summary.items()} for summary in merged]
                before = earlier.before.get(hook)
                if before is not None:
                    counts[sample, place] += before.count
                    parts = zip(self._kinds, before.summaries, own, strict=True)
                    own = [kind.merged(first, later) for kind, first, later in parts]
                    for target, summary in zip(merged, own, strict=True):
                        for name, value in summary.items():
                            target[name][here] = value
                earlier.after[hook] = SummedRows(int(counts[sample, place]), tuple(own))
        return merged

    def _place(
        self,
        made: list[dict[str, RowChunk]],
        point: int,
        name: str,
        values: torch.Tensor,
        counts: Sequence[int],
    ) -> None:
        if not name:
            values = values.to(stored_dtype(self._made_of[point][1], self._dtype))
        for sample, chunk in enumerate(made):
            count = counts[sample]
            row = values[sample : sample + min(count, 1)].contiguous()
            for hook in self._points[point].hooks:
                chunk[f"{hook}.{name}" if name else hook] = RowChunk(0, row, over=count)

    def clear(self) -> None:
        self._known.clear()
