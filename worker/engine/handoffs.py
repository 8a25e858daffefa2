"""nnsight's hand-off points, present only on the modules that a trace reads.

nnsight replaces the `forward` of every module by a controller that offers the module's input and
output to the running trace. A controller costs about 1.5 microseconds per module call without a
trace and three times that inside one, read or not: 15 to 20 % of a decode step that is bound by
Python. So the controllers are put aside when the model is loaded, and a trace puts back those of
the modules that it reads.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from nnsight.intervention.source import STATE, Controller, run_body


def restore(model: torch.nn.Module) -> None:
    """Put back every controller that was put aside: nnsight wants them when it wraps a model again."""
    for module in model.modules():
        state = module.__dict__.get(STATE)
        if state is not None:
            module.__dict__.setdefault("forward", Controller(module, state))


def run_unseen(module: torch.nn.Module, *args: Any) -> Any:
    """What a module makes of `args`, unseen by a trace that runs now.

    accelerate's hook, which brings tensors and weights to one device, is called as always.
    """
    state = module.__dict__.get(STATE)
    return module.forward(*args) if state is None else run_body(state, module, args, {})


class Handoffs:
    """Puts controllers aside, and back for the time of a trace.

    A module whose controller runs something else than the class's own `forward` (an accelerate
    hook, a patched instance) keeps it for good.

    Args:
        lm: nnsight's model.
    """

    def __init__(self, lm: Any) -> None:
        self._aside: dict[str, tuple[Any, Controller]] = {}
        for path, module in lm._module.named_modules():
            controller = module.__dict__.get("forward")
            if not isinstance(controller, Controller) or "_hf_hook" in module.__dict__:
                continue
            if module.__dict__[STATE].body is not type(module).forward:
                continue
            self._aside[path] = (module, controller)
            del module.__dict__["forward"]

    @contextmanager
    def on(self, paths: Sequence[str]) -> Iterator[None]:
        """With the hand-offs of these modules in place."""
        chosen = [self._aside[path] for path in dict.fromkeys(paths) if path in self._aside]
        try:
            for module, controller in chosen:
                module.__dict__["forward"] = controller
            yield
        finally:
            for module, _ in chosen:
                module.__dict__.pop("forward", None)
