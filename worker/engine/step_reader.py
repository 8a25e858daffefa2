"""Reads the points of every step inside a trace and hands each step on as a whole."""

from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import torch
from nnsight.intervention.cache import Cache
from nnsight.intervention.interleaver import Mediator
from nnsight.intervention.util import first_input

from actograph.contract.errors import CaptureFailed
from worker.engine.locations import place_of
from worker.engine.rows import RowStream


class _Reading(NamedTuple):
    """What is taken from one value that nnsight shows."""

    is_input: bool
    points: list[tuple[int, int]]  # (point, element of a tuple), in the order of the points


class PointReader(Cache):  # type: ignore[misc]
    """A cache, in nnsight's sense, that keeps nothing.

    nnsight calls a trace's caches with every value at the locations that they subscribe to, after
    interventions have had it. `tracer.cache()` would keep the values of all steps until the end;
    a subclass passes them on in `got`.
    (`for step in tracer.iter[:]` does the same at 15 to 20 microseconds per value instead of 3,
    and leaves a reference cycle behind.)

    Args:
        lm: nnsight's model.
        locations: as `place_of` reads them, in execution order, one per point;
            from the dry forward, never from a client's string.
        batch: rows of the batch.
        flat: locations whose tensors have batch and tokens in one dimension: [batch * tokens, ...].
        copied: points whose tensors the model overwrites after they were read.
    """

    def __init__(
        self,
        lm: Any,
        locations: Sequence[str],
        *,
        batch: int,
        flat: Collection[str] = (),
        copied: Collection[int] = (),
    ) -> None:
        super().__init__(lm, modules=[], device=None)
        self._readings: dict[str, _Reading] = {}
        for i, location in enumerate(locations):
            path, side, part = place_of(location)
            reading = self._readings.setdefault(f"{lm.path}.{path}.{side}", _Reading(side == "input", []))
            reading.points.append((i, part))
        self._batch = batch
        self._flat = frozenset(i for i, location in enumerate(locations) if location in flat)
        self._names = tuple(locations)
        self._copied = copied
        self._last = len(locations) - 1
        self._next = 0

    def subscriptions(self) -> dict[str, _Reading]:
        """nnsight's location -> what `observe_selected` gets with its value."""
        return self._readings

    def observe_selected(self, selected: _Reading, value: Any) -> None:
        """Take the value at one location; called inside the model's forward pass."""
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
                "run its modules in the order that was proved when it was loaded"
            )
        if point in self._flat:
            value = self._unflatten(point, value)
        if point in self._copied:
            value = value.clone()
        self._next = 0 if point == self._last else point + 1
        self.got(point, value)

    def got(self, point: int, value: torch.Tensor) -> None:
        """One point's tensor, [batch, tokens, ...]; the points come in their order, step by step."""
        raise NotImplementedError

    def _unflatten(self, point: int, value: torch.Tensor) -> torch.Tensor:
        """[batch * tokens, ...] as [batch, tokens, ...]."""
        if value.shape[0] % self._batch:
            raise CaptureFailed(
                f"{self._names[point]} gave a tensor of shape {tuple(value.shape)}, "
                f"which are not the tokens of {self._batch} samples"
            )
        return value.reshape(self._batch, -1, *value.shape[1:])

    def attach(self) -> None:
        """Subscribe; called from inside the `with` block of a trace."""
        Mediator.current("a reader").caches.append(self)


class StepReader(PointReader):
    """Passes what a generation shows to a `RowStream`.

    A prompt's tensors go one by one, so that no two layers' prompt rows are held on the device, a
    decode step's together, for they are one row each.

    Args:
        locations: one per point of `stream`.
    """

    def __init__(
        self,
        lm: Any,
        locations: Sequence[str],
        stream: RowStream,
        *,
        batch: int,
        flat: Collection[str] = (),
    ) -> None:
        super().__init__(lm, locations, batch=batch, flat=flat, copied=stream.copied_points)
        self._stream = stream
        self._values: list[torch.Tensor] = []
        self._decoding = False

    def got(self, point: int, value: torch.Tensor) -> None:
        if not self._decoding:
            self._stream.prefill(point, value)
            self._decoding = point == self._last
            return
        self._values.append(value)
        if point == self._last:
            values, self._values = self._values, []
            self._stream.decode(values)
