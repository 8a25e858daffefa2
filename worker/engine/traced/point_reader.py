"""Reads the points of every forward pass inside a trace, in their order."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from nnsight.intervention.util import first_input

from actograph.contract.errors import CaptureFailed
from worker.engine.locations import place_of


class _Reading(NamedTuple):
    """The points read from one value of nnsight."""

    is_input: bool
    points: list[tuple[int, int]]  # (point, element of a tuple), in the order of the points


class PointReader:
    """Observes a trace and hands over the tensors of its points.

    (`for step in tracer.iter[:]` does the same at 15 to 20 microseconds per value instead of 3,
    and leaves a reference cycle behind.)

    Args:
        lm: nnsight's model.
        locations: as `place_of` reads them, in execution order, one per point;
            verified at load, never a client's string.
        take: called with each point's tensor [batch, tokens, ...]; points come in order, pass by pass.
        batch: rows of the batch.
        flat: locations whose tensors have batch and tokens in one dimension: [batch * tokens, ...].
        copied: points whose tensors the model overwrites after they were read.
        by_hand: path of a module whose values the caller passes to `show`.
    """

    def __init__(
        self,
        lm: Any,
        locations: Sequence[str],
        take: Callable[[int, torch.Tensor], None],
        *,
        batch: int,
        flat: Collection[str] = (),
        copied: Collection[int] = (),
        by_hand: str | None = None,
    ) -> None:
        self._take = take
        self._readings: dict[str, _Reading] = {}
        for i, location in enumerate(locations):
            path, side, part = place_of(location)
            if path == by_hand:
                continue
            reading = self._readings.setdefault(f"{lm.path}.{path}.{side}", _Reading(side == "input", []))
            reading.points.append((i, part))
        self._batch = batch
        self._flat = frozenset(i for i, location in enumerate(locations) if location in flat)
        self._names = tuple(locations)
        self._copied = copied
        self._last = len(locations) - 1
        self._next = 0

    def subscriptions(self) -> Mapping[str, _Reading]:
        return self._readings

    def observe_selected(self, selected: _Reading, value: Any) -> None:
        """Take the value at one location."""
        if selected.is_input:
            value = first_input(*value)
        for point, part in selected.points:
            self.show(point, value[part] if part else value)

    @property
    def due(self) -> int:
        """The point that must come next."""
        return self._next

    def show(self, point: int, value: Any) -> None:
        """Take one point's value, as the model computed it.

        Raises:
            CaptureFailed: another point is due.
        """
        while isinstance(value, tuple | list):
            value = value[0]
        if point != self._next:
            raise CaptureFailed(
                f"{self._names[point]} came where {self._names[self._next]} was due: the model does not "
                "run its modules in the order that was verified when it was loaded"
            )
        if point in self._flat:
            value = self._unflatten(point, value)
        if point in self._copied:
            value = value.clone()
        self._next = 0 if point == self._last else point + 1
        self._take(point, value)

    def _unflatten(self, point: int, value: torch.Tensor) -> torch.Tensor:
        """[batch * tokens, ...] as [batch, tokens, ...]."""
        if value.shape[0] % self._batch:
            raise CaptureFailed(
                f"{self._names[point]} gave a tensor of shape {tuple(value.shape)}, "
                f"which are not the tokens of {self._batch} samples"
            )
        return value.reshape(self._batch, -1, *value.shape[1:])
