"""Summaries of one request's rows, updated with every block of rows that passes."""

from collections.abc import Sequence

import torch
from torch import Tensor

from actograph.contract.errors import CaptureFailed
from worker.engine.capture.pool import Group
from worker.engine.capture.selection import stored_dtype
from worker.engine.capture.statistics import Last, Max, Mean, Statistics, Summariser
from worker.engine.messages import Reduce
from worker.engine.requests import EarlierRows, RowChunk, RowShaping, Summary, SummedRows

#: bytes of one float64 copy of rows; longer blocks are summed up in pieces
_PIECE_BYTES = 32 << 20
_REDUCERS: dict[Reduce, type[Mean] | type[Max] | type[Last]] = {"mean": Mean, "max": Max, "last": Last}


class Summaries:
    """Reductions and statistics of the rows of one request.

    Args:
        groups: points of its plan.
        dtype: dtype of reduced rows; None keeps that of the rows. Statistics are float64 and int64.
        earlier: summaries of earlier turns; takes those of this turn too.

    Raises:
        CaptureFailed: a point holds integers (expert indices), which have no mean.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        shaping: RowShaping,
        *,
        dtype: torch.dtype | None,
        earlier: EarlierRows | None = None,
    ) -> None:
        self._earlier, self._dtype = earlier, dtype
        self._kinds: list[Summariser] = []
        if shaping.reduce != "none":
            self._kinds.append(_REDUCERS[shaping.reduce]())
        if shaping.statistics is not None:
            self._kinds.append(Statistics(shaping.statistics.threshold))
        if shaping.reduce in ("mean", "max") or shaping.statistics is not None:
            for group in groups:
                if not group.source.is_floating_point:
                    raise CaptureFailed(
                        f"{group.names[0][0]} holds integers: it has no mean, maximum or statistics. "
                        "Capture it in a job without reduce and stats, or with reduce: last"
                    )
        self._counts = dict.fromkeys(groups, 0)
        self._known: dict[Group, list[Summary]] = {}  # one summary per kind

    def add(self, group: Group, rows: Tensor) -> None:
        """Take the next rows of a group, [points, tokens, width]."""
        self._counts[group] += rows.shape[1]
        size = max(1, _PIECE_BYTES // (8 * rows.shape[0] * rows.shape[2]))
        for start in range(0, rows.shape[1], size):
            new = [kind.of(rows[:, start : start + size]) for kind in self._kinds]
            self._known[group] = self._merged(self._known.get(group), new)

    def forget(self, group: Group) -> None:
        """Drop the rows of a group so far."""
        self._counts[group] = 0
        self._known.pop(group, None)

    def chunks(self) -> dict[str, RowChunk]:
        """Tensor name -> one row, or no row if no row was chosen.

        A reduced row has its hook's name; a statistic is `<hook>.<its name>`.
        """
        made: dict[str, RowChunk] = {}
        for group, count in self._counts.items():
            for point, names in enumerate(group.names):
                own = None
                if group in self._known:
                    own = [{name: x[point : point + 1] for name, x in s.items()} for s in self._known[group]]
                total, own = self._with_earlier(names[0], count, own)
                made |= self._chunks(group, names, total, own)
        return made

    def _with_earlier(
        self, hook: str, count: int, own: list[Summary] | None
    ) -> tuple[int, list[Summary] | None]:
        """Count and summaries of one hook with those of earlier turns; recorded for the next turn."""
        if self._earlier is None:
            return count, own
        before = self._earlier.before.get(hook)
        if before is not None:
            count += before.count
            own = list(before.summaries) if own is None else self._merged(before.summaries, own)
        if own is not None:
            self._earlier.after[hook] = SummedRows(count, tuple(own))
        return count, own

    def _merged(self, earlier: Sequence[Summary] | None, later: list[Summary]) -> list[Summary]:
        if earlier is None:
            return later
        return [kind.merged(a, b) for kind, a, b in zip(self._kinds, earlier, later, strict=True)]

    def _chunks(
        self, group: Group, names: Sequence[str], count: int, own: list[Summary] | None
    ) -> dict[str, RowChunk]:
        """Tensors of one point; without rows they have their names and dtypes alone."""
        if own is None:
            own = [kind.of(torch.zeros(1, 1, group.width, dtype=group.source)) for kind in self._kinds]
        made = {}
        for kind, summary in zip(self._kinds, own, strict=True):
            for name, values in kind.finished(summary, count).items():
                row = values if name else values.to(stored_dtype(group.source, self._dtype))
                chunk = RowChunk(0, (row[: min(count, 1)].clone(),), over=count)
                made.update({f"{hook}.{name}" if name else hook: chunk for hook in names})
        return made
