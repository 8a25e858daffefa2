"""Outlier features, massive activations, moments and use of experts, summed up over rows in one pass."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from actograph.analysis.experts import ExpertUse
from actograph.analysis.massive import MassiveActivation, MassiveCandidates
from actograph.analysis.moments import Moments
from actograph.analysis.outlier_features import OutlierCounts, OutlierRule

Array = NDArray[Any]
_CHOSEN, _LOGITS = "expert_indices", "router_logits"
#: points whose rows the experts of a layer read
_EXPERT_INPUTS = ("mlp_in", "ln_mlp")


class RowOrigin(NamedTuple):
    """Origin and width of rows."""

    point: str
    layer: int
    width: int

    @property
    def is_routed(self) -> bool:
        """True for rows of a router, which tell the use of experts."""
        return _CHOSEN in self.point or _LOGITS in self.point


class OutlierSums:
    """The sums; `add_values` and `add_layers` take the same rows.

    Attributes:
        experts: layer -> use.
        moments: name -> moments of its values; without those of routers.
        counts: points that are counted together -> counts.
    """

    def __init__(
        self,
        places: Mapping[str, RowOrigin],
        rule: OutlierRule,
        *,
        together: bool = False,
        massive_magnitude: float = 100.0,
    ) -> None:
        """
        Args:
            places: of the rows by name.
            together: count the points of a layer together.

        Raises:
            ValueError: rows that are counted together have several widths.
        """
        self.rule = rule
        self._routed = {name: place for name, place in places.items() if place.is_routed}
        values = {name: place for name, place in places.items() if name not in self._routed}
        self._inputs = {place.layer: name for name, place in values.items() if place.point in _EXPERT_INPUTS}
        self.experts = {place.layer: ExpertUse() for place in self._routed.values()}
        self.moments = {name: Moments() for name in values}
        self._massive = {name: MassiveCandidates(massive_magnitude) for name in values}
        self._groups: dict[str, dict[int, list[str]]] = {}
        every = "+".join(dict.fromkeys(place.point for place in values.values()))
        for name, place in values.items():
            group = self._groups.setdefault(every if together else place.point, {})
            group.setdefault(place.layer, []).append(name)
        self.counts: dict[str, OutlierCounts] = {}
        for group_name, layers in self._groups.items():
            widths = {values[name].width for names in layers.values() for name in names}
            if len(widths) > 1:
                raise ValueError(
                    f"{group_name or 'the layers'} are {sorted(widths)} wide; choose rows of one width"
                )
            self.counts[group_name] = OutlierCounts(sorted(layers), widths.pop(), rule.threshold)

    def add_values(self, name: str, rows: Array, text: int, tokens: Sequence[int]) -> None:
        """Add rows of one name, [n, width], for moments and massive activations.

        Args:
            text: number of the session or sequence.
            tokens: token of each row.
        """
        self.moments[name].add(rows)
        self._massive[name].add(rows, text, tokens)

    def add_layers(self, rows: Mapping[str, Array]) -> None:
        """Add rows of every name, for outlier features and experts.

        Raises:
            ValueError: rows that are counted together are of different tokens, or are no indices of experts.
        """
        for name, place in self._routed.items():
            use, found = self.experts[place.layer], rows[name]
            if _CHOSEN not in place.point:
                use.add_logits(found)
                continue
            if found.dtype.kind not in "iu" or (found.size and found.min() < 0):
                raise ValueError(f"{name}: expert indices are integers from 0")
            use.add_chosen(found)
            if (read := self._inputs.get(place.layer)) is not None:
                if len(rows[read]) != len(found):
                    raise ValueError(f"{read} and {name} have rows of different tokens")
                use.add_inputs(found, rows[read], self.rule.threshold)
        for group, layers in self._groups.items():
            try:
                self.counts[group].add(
                    {layer: [rows[name] for name in names] for layer, names in layers.items()}
                )
            except ValueError as error:
                raise ValueError(f"{group or 'the layers'}: {error}") from None

    def arrays(self) -> dict[str, Array]:
        """The sums as arrays, for `restore`."""
        return {f"{name}/{field}": np.asarray(getattr(part, field)) for name, field, part in self._fields()}

    def restore(self, saved: Mapping[str, Array]) -> None:
        """Continue from saved sums of the same names."""
        for name, field, part in self._fields():
            value = saved[f"{name}/{field}"]
            setattr(part, field, value if value.ndim else value.item())

    def _fields(self) -> Iterator[tuple[str, str, object]]:
        """Names of the parts, and of their numbers and arrays."""
        kinds = ("experts", self.experts), ("moments", self.moments)
        for kind, parts in (*kinds, ("massive", self._massive), ("counts", self.counts)):
            for name, part in parts.items():
                for field, value in list(vars(part).items()):
                    if not isinstance(value, list):
                        yield f"{kind}/{name}", field, part

    def features(self) -> Iterator[dict[str, Any]]:
        """The outlier features of each group."""
        for group, counts in self.counts.items():
            for one in counts.features(self.rule):
                yield ({"points": group} if group else {}) | one.as_dict()

    def massive(self, times_median: float) -> list[MassiveActivation]:
        """The massive activations, the largest first."""
        found = [one for name, kept in self._massive.items() for one in kept.found(name, times_median)]
        return sorted(found, key=lambda one: -abs(one.value))

    @property
    def massive_dropped(self) -> int:
        """Candidates for massive activations that were too many to keep."""
        return sum(one.dropped for one in self._massive.values())

    def values_of(self, name: str) -> dict[str, Any]:
        """The moments of a name's values, and their median magnitude."""
        moments = self.moments[name]
        return {
            "values": moments.count,
            "mean": moments.mean,
            "variance": moments.variance,
            "kurtosis": moments.kurtosis,
            "largest": moments.largest,
            "median_magnitude": self._massive[name].median,
        }

    def use_of_experts(self) -> dict[str, Any]:
        """Layer -> use of its experts."""
        return {str(layer): use.summary() for layer, use in sorted(self.experts.items())}
