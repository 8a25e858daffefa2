"""The only module that opens nnsight contexts: one forward pass.

nnsight captures the source of the innermost block, so that block holds one call and nothing else.
inference_mode is outside, since nnsight skips other managers of its own `with`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from nnsight.intervention.interleaver import Mediator

from worker.engine.model.loaded import LoadedModel


class Observer(Protocol):
    """Sees, and may change, the tensors of a trace.

    nnsight calls these two methods of a trace's caches (`nnsight.intervention.cache`). A value goes to all
    subscribers of its location, after interventions, in the order in which they were attached.
    `tracer.cache()` would keep the values of all steps until the end.
    """

    def subscriptions(self) -> Mapping[str, Any]:
        """nnsight's location -> what `observe_selected` gets with its value."""
        ...

    def observe_selected(self, selected: Any, value: Any) -> None:
        """Take the value at one location; called inside the model's forward pass."""
        ...


def forward(
    model: LoadedModel, inputs: Mapping[str, Any], observers: Sequence[Observer], modules: Sequence[str]
) -> None:
    """Run one forward pass; observers get the tensors at `modules`."""
    lm, handoffs = model.lm, model.handoffs
    assert handoffs is not None
    data, options = _split(inputs)
    with handoffs.on(modules, _subscribed(observers)), torch.inference_mode():  # noqa: SIM117
        with lm.trace(**options) as tracer:
            with tracer.invoke(**data):
                _attach(observers)


def _split(inputs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split inputs into tensors of the batch and options of the call."""
    data = {name: inputs[name] for name in ("input_ids", "attention_mask", "position_ids") if name in inputs}
    return data, {name: value for name, value in inputs.items() if name not in data}


def _subscribed(observers: Sequence[Observer]) -> set[str]:
    return {location for observer in observers for location in observer.subscriptions()}


def _attach(observers: Sequence[Observer]) -> None:
    """Subscribe them; called from inside the `with` block of a trace."""
    Mediator.current("an observer").caches.extend(observers)
