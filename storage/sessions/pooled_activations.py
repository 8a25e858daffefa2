"""Activations averaged over the tokens of a sample, read from stored sessions in blocks."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from actograph.contract.errors import InvalidRequest
from actograph.contract.resources import HookDifference
from actograph.contract.row_selection import Positions
from storage.sessions import selected_rows
from storage.sessions.reader import SessionReader
from storage.sessions.selected_rows import Floats


def pooled(reader: SessionReader, hook: str, positions: Positions) -> Floats | None:
    """Mean of a hook's rows over the selected tokens: [width] in float64; None without any of these rows.

    Raises:
        NotFound: the session has no such hook.
        InvalidRequest: the hook was stored as a summary over all tokens, or has indices in place of numbers.
        StoreDamaged: the files are damaged.
    """
    info = reader.tensor_info(hook)
    if info.dtype.startswith(("I", "U", "B")) and not info.dtype.startswith("BF"):
        raise InvalidRequest(f"{hook} holds indices ({info.dtype}), which have no mean", param="hooks")
    if info.summary is not None:
        if positions != "all":
            raise InvalidRequest(
                f"{hook} was stored as the {info.summary} over tokens; only positions: all can be compared",
                param="positions",
            )
        whole: Floats = selected_rows.read(reader, hook, 0, 1)[0].astype(np.float64)
        return whole
    _, chosen = selected_rows.select(reader, hook, positions)
    return selected_rows.reduced(reader, hook, chosen, "mean") if chosen else None


class _PairSums:
    """Running sums over pairs of vectors of this width."""

    def __init__(self, width: int) -> None:
        self.pairs = 0
        self.pair_norms = 0.0
        self.baseline = np.zeros(width)
        self.condition = np.zeros(width)
        self.unit_differences = np.zeros(width)

    def add(self, baseline: Floats, condition: Floats) -> None:
        difference = condition - baseline
        norm = float(np.linalg.norm(difference))
        self.pairs += 1
        self.baseline += baseline
        self.condition += condition
        self.pair_norms += norm
        if norm > 0:
            self.unit_differences += difference / norm


@dataclass(frozen=True)
class GroupDifference:
    """The mean difference of one hook, [width] in float64, and its summary."""

    vector: Floats
    summary: HookDifference


class PairedActivations:
    """Running sums of pooled activations over pairs of sessions, so memory does not grow with the pairs."""

    def __init__(self, positions: Positions) -> None:
        self._positions = positions
        self._sums: dict[str, _PairSums] = {}
        self.pairs = 0
        self.skipped = 0

    def add(self, baseline: SessionReader, condition: SessionReader, hooks: Iterable[str]) -> None:
        """Add one pair. A hook is skipped if either session has none of its rows.

        Raises:
            NotFound, InvalidRequest, StoreDamaged: as `pooled`.
        """
        seen = False
        for hook in hooks:
            first, second = (pooled(reader, hook, self._positions) for reader in (baseline, condition))
            if first is None or second is None:
                continue
            if first.shape != second.shape:
                raise InvalidRequest(
                    f"{hook} is {len(first)} and {len(second)} wide in one pair", param="hooks"
                )
            seen = True
            self._sums.setdefault(hook, _PairSums(len(first))).add(first, second)
        self.pairs += 1
        self.skipped += not seen

    def directions(self) -> Mapping[str, GroupDifference]:
        """Hook -> mean difference and its summary, in the order of the hooks."""
        return {hook: _direction(sums) for hook, sums in self._sums.items()}


def _direction(sums: _PairSums) -> GroupDifference:
    baseline, condition = sums.baseline / sums.pairs, sums.condition / sums.pairs
    difference = condition - baseline
    length = float(np.linalg.norm(difference))
    norms = float(np.linalg.norm(baseline)), float(np.linalg.norm(condition))
    return GroupDifference(
        vector=difference,
        summary=HookDifference(
            pairs=sums.pairs,
            width=len(difference),
            baseline_norm=norms[0],
            condition_norm=norms[1],
            difference_norm=length,
            cosine_similarity=_ratio(float(baseline @ condition), math.prod(norms)),
            mean_pair_norm=sums.pair_norms / sums.pairs,
            # mean of cos(d_i, d) = (sum of unit d_i) . d / (n |d|); a pair without a difference counts 0
            consistency=_ratio(float(sums.unit_differences @ difference), sums.pairs * length),
        ),
    )


def _ratio(value: float, of: float) -> float | None:
    return value / of if of > 0 else None
