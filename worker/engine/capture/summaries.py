"""Summaries of one request's rows, accumulated on the device block by block."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from actograph.contract.errors import CaptureFailed
from evals.plans import summed_channel_bytes
from worker.engine.capture.budget import Piece
from worker.engine.capture.host_rows import rows_of
from worker.engine.capture.layouts import Group, Layout
from worker.engine.capture.selection import reduced_dtype, stored_dtype
from worker.engine.capture.statistics import Last, Max, Mean, Statistics, Summariser, Summary
from worker.engine.messages import Capture, Reduce, Rows

#: bytes of one float64 copy of rows; longer blocks are summed up in pieces
_PIECE_BYTES = 16 << 20
_REDUCERS: dict[Reduce, type[Mean] | type[Max] | type[Last]] = {"mean": Mean, "max": Max, "last": Last}


@dataclass(frozen=True, slots=True)
class SummedRows:
    """Summary of some rows of one hook of one sample, on the host."""

    count: int
    summaries: tuple[Summary, ...]  # of each summariser, of one point


@dataclass(slots=True, eq=False)
class EarlierRows:
    """Carries a sample's summaries from one turn to the next.

    Attributes:
        before: hook -> summary of earlier generations; empty before the first.
        after: the same including this generation, when it has ended.
    """

    before: Mapping[str, SummedRows] = field(default_factory=dict)
    after: dict[str, SummedRows] = field(default_factory=dict)


def summary_bytes(capture: Capture, layouts: Sequence[Layout]) -> int:
    """Bytes of the summaries of one request."""
    statistics = capture.statistics
    return sum(
        len(group.locations)
        * group.width
        * summed_channel_bytes(
            capture.reduce,
            statistics=statistics is not None,
            counted=statistics is not None and statistics.threshold is not None,
            item=group.source.itemsize,
        )
        for layout in layouts
        if layout.summed
        for group in layout.groups
    )


class Summaries:
    """Reductions and statistics of the rows of one request.

    Args:
        groups: points of its capture.
        capture: reduced rows have its dtype; statistics are float64 and int64.
        earlier: summaries of earlier turns; takes those of this turn too.
        device: of the rows.

    Raises:
        CaptureFailed: a point holds integers (expert indices), which have no mean.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        capture: Capture,
        *,
        earlier: EarlierRows | None = None,
        device: torch.device,
    ) -> None:
        self._earlier, self._device = earlier, device
        self._dtype = reduced_dtype(capture.dtype)
        self._kinds: list[Summariser] = []
        if capture.reduce != "none":
            self._kinds.append(_REDUCERS[capture.reduce]())
        if capture.statistics is not None:
            self._kinds.append(Statistics(capture.statistics.threshold))
        if capture.reduce in ("mean", "max") or capture.statistics is not None:
            for group in groups:
                if not group.source.is_floating_point:
                    raise CaptureFailed(
                        f"{group.names[0][0]} holds integers: it has no mean, maximum or statistics. "
                        "Capture it in a job without reduce and stats, or with reduce: last"
                    )
        self._counts = dict.fromkeys(groups, 0)
        self._known: dict[Group, list[Summary]] = {}  # one summary per kind
        #: takes the summaries, see `summary_bytes`; None: torch allocates them
        self.memory: Piece | None = None

    def add(self, group: Group, rows: Tensor) -> None:
        """Take the next rows of a group, [points, tokens, width]."""
        self._counts[group] += rows.shape[1]
        size = max(1, _PIECE_BYTES // (8 * rows.shape[0] * rows.shape[2]))
        for start in range(0, rows.shape[1], size):
            new = [kind.of(rows[:, start : start + size]) for kind in self._kinds]
            known = self._known.get(group)
            made = self._merged(known, new)
            self._known[group] = made if self.memory is None else self._stored(self.memory, known, made)

    def _stored(
        self, memory: Piece, known: Sequence[Summary] | None, made: Sequence[Summary]
    ) -> list[Summary]:
        """Copies of summaries in the request's own memory, from the first rows to the last."""
        stored: list[Summary] = []
        for i, summary in enumerate(made):
            if known is None:
                # of the number of rows, which is one number for a point, torch has the memory
                own = {
                    name: x if x.shape[-1] == 1 else memory.tensor(x.shape, x.dtype)
                    for name, x in summary.items()
                }
            else:
                own = known[i]
            stored.append({name: own[name].copy_(x) for name, x in summary.items()})
        return stored

    def chunks(self, fetch: Callable[[Tensor], Tensor]) -> dict[str, Rows]:
        """Tensor name -> one row, or no row if no row was chosen.

        A reduced row has its hook's name; a statistic is `<hook>.<its name>`.

        Args:
            fetch: brings a tensor to the host.
        """
        made: dict[str, Rows] = {}
        for group, count in self._counts.items():
            total, own = self._with_earlier(group, count, self._known.get(group), fetch)
            made |= self._chunks(group, total, own, fetch)
        return made

    def _with_earlier(
        self, group: Group, count: int, own: list[Summary] | None, fetch: Callable[[Tensor], Tensor]
    ) -> tuple[int, list[Summary] | None]:
        """Count and summaries of a group with those of earlier turns; recorded for the next turn."""
        if self._earlier is None:
            return count, own
        before = [self._earlier.before.get(names[0]) for names in group.names]
        known = [one for one in before if one is not None]
        if known:
            count += known[0].count
            # one tensor of all points; a point that is missing would shift the others
            if len(known) != len(before):
                raise CaptureFailed(f"{group.names[0][0]}: an earlier turn has rows of other hooks")
            joined = [
                {
                    name: torch.cat([one.summaries[k][name] for one in known]).to(self._device)
                    for name in known[0].summaries[k]
                }
                for k in range(len(self._kinds))
            ]
            own = joined if own is None else self._merged(joined, own)
        if own is not None:
            there = [{name: fetch(x) for name, x in summary.items()} for summary in own]
            for i, names in enumerate(group.names):
                point = tuple({name: x[i : i + 1] for name, x in summary.items()} for summary in there)
                self._earlier.after[names[0]] = SummedRows(count, point)
        return count, own

    def _merged(self, earlier: Sequence[Summary] | None, later: list[Summary]) -> list[Summary]:
        if earlier is None:
            return later
        return [kind.merged(a, b) for kind, a, b in zip(self._kinds, earlier, later, strict=True)]

    def _chunks(
        self, group: Group, count: int, own: list[Summary] | None, fetch: Callable[[Tensor], Tensor]
    ) -> dict[str, Rows]:
        """Tensors of a group's points; without rows they have their names and dtypes alone."""
        if own is None:
            rows = torch.zeros(len(group.names), 1, group.width, dtype=group.source)
            own, fetch = [kind.of(rows) for kind in self._kinds], lambda x: x
        made = {}
        for kind, summary in zip(self._kinds, own, strict=True):
            for name, values in kind.finished(summary, count).items():
                rows = values if name else values.to(stored_dtype(group.source, self._dtype))
                rows = fetch(rows)
                for i, names in enumerate(group.names):
                    row = rows_of((rows[i : i + min(count, 1)],), over=count)
                    made.update({f"{hook}.{name}" if name else hook: row for hook in names})
        return made
