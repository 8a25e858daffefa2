"""The only module that opens nnsight contexts: generation, and one forward pass over prompts.

nnsight captures the source of the innermost block, so that block holds one call and nothing else.
inference_mode stands outside, for nnsight skips what shares its `with`. The whole padded batch is
one invoke.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, Protocol

import torch
from nnsight.intervention.interleaver import EarlyStopException

from worker.engine.model import LoadedModel


class Observer(Protocol):
    """Sees, and may change, the tensors that pass a trace."""

    def attach(self) -> None:
        """Subscribe; called from inside the `with` block of a trace."""
        ...


def generate(
    model: LoadedModel, inputs: Mapping[str, Any], observers: Sequence[Observer], modules: Sequence[str]
) -> None:
    """Generate while every step's tensors at `modules` pass the observers, in their order."""
    lm = model.lm
    data, options = _split(inputs)
    with model.handoffs.on(modules), torch.inference_mode():  # noqa: SIM117
        with lm.generate(**options) as tracer:
            with tracer.invoke(**data):
                _attach(observers)


def forward(
    model: LoadedModel, inputs: Mapping[str, Any], observers: Sequence[Observer], modules: Sequence[str]
) -> None:
    """One forward pass while the tensors at `modules` pass the observers; it ends early where `stop` is
    called."""
    lm = model.lm
    data, options = _split(inputs)
    with model.handoffs.on(modules), torch.inference_mode():  # noqa: SIM117
        with lm.trace(**options) as tracer:
            with tracer.invoke(**data):
                _attach(observers)


def stop() -> NoReturn:
    """End the forward pass that runs now, from inside it; `forward` returns as if it had come to its end."""
    raise EarlyStopException()


def _split(inputs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What belongs to the rows of the batch, and how to run them."""
    data = {name: inputs[name] for name in ("input_ids", "attention_mask", "position_ids") if name in inputs}
    return data, {name: value for name, value in inputs.items() if name not in data}


def _attach(observers: Sequence[Observer]) -> None:
    for observer in observers:
        observer.attach()
