"""Reads the points of every step inside a trace and hands each step on as a whole."""

from collections.abc import Sequence
from typing import Any

import torch
from nnsight.intervention.cache import Cache
from nnsight.intervention.interleaver import Mediator
from nnsight.intervention.util import first_input

from actograph.contract.errors import CaptureFailed
from worker.engine.rows import RowStream


class StepReader(Cache):  # type: ignore[misc]
    """A cache, in nnsight's sense, that keeps nothing.

    nnsight calls a trace's caches with every value at the locations that they subscribe to, after
    interventions have had it. `tracer.cache()` would keep the values of all steps until the end;
    this one passes them to a `RowStream`: a prompt's tensors one by one, so that no two layers'
    prompt rows are held on the device, a decode step's together, for they are one row each.
    (`for step in tracer.iter[:]` does the same at 15 to 20 microseconds per value instead of 3,
    and leaves a reference cycle behind.)

    Args:
        lm: nnsight's model.
        locations: `<module path>.input|.output` in execution order, one per point of `stream`;
            from the dry forward, never from a client's string.
    """

    def __init__(self, lm: Any, locations: Sequence[str], stream: RowStream) -> None:
        super().__init__(lm, modules=[], device=None)
        self._locations = {f"{lm.path}.{location}": i for i, location in enumerate(locations)}
        self._names = tuple(locations)
        self._stream = stream
        self._copied = stream.copied_points
        self._last = len(locations) - 1
        self._values: list[torch.Tensor] = []
        self._next = 0
        self._decoding = False

    def subscriptions(self) -> dict[str, tuple[int, bool]]:
        """nnsight's location -> what `observe_selected` gets with its value."""
        return {name: (i, name.endswith(".input")) for name, i in self._locations.items()}

    def observe_selected(self, selected: tuple[int, bool], value: Any) -> None:
        """Take the value at one location; called inside the model's forward pass."""
        point, is_input = selected
        if is_input:
            value = first_input(*value)
        while isinstance(value, tuple | list):
            value = value[0]
        if point != self._next:
            raise CaptureFailed(
                f"{self._names[point]} came where {self._names[self._next]} was due: the model does not "
                "run its modules in the order that was proved when it was loaded"
            )
        if point in self._copied:
            value = value.clone()
        if self._decoding:
            self._values.append(value)
            if point == self._last:
                values, self._values, self._next = self._values, [], 0
                self._stream.decode(values)
                return
        else:
            self._stream.prefill(point, value)
            if point == self._last:
                self._decoding, self._next = True, 0
                return
        self._next = point + 1

    def attach(self) -> None:
        """Subscribe; called from inside the `with` block of a trace."""
        Mediator.current("the step reader").caches.append(self)
