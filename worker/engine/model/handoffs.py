"""nnsight's hand-off points, present only on the modules that a trace reads.

nnsight replaces the `forward` of every module by a controller, which shows the module's input and output to
the running trace. Unread controllers cost 15 to 20 % of a decode step that is bound by Python. So loading
removes the controllers. During a trace, the modules that it reads get a hand-off of their input or output.
"""

import functools
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from nnsight.intervention.source import STATE, Controller


def restore(model: torch.nn.Module) -> None:
    """Put the removed controllers back; nnsight needs them to wrap a model again."""
    for module in model.modules():
        state = module.__dict__.get(STATE)
        if state is not None:
            module.__dict__.setdefault("forward", Controller(module, state))


class _Handoff:
    """Replaces a module's `forward` and shows its input, its output or both to a trace.

    Like nnsight's controller, without the option to skip the module.
    """

    def __init__(self, module: Any, *, gives_input: bool, gives_output: bool) -> None:
        functools.update_wrapper(self, type(module).forward)  # its signature is looked at
        self._module = module
        self._state = module.__dict__[STATE]
        self._body = self._state.body
        self._input, self._output = gives_input, gives_output

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        interleaver, _, locations = self._state.active()
        if interleaver is None:
            return self._body(self._module, *args, **kwargs)
        if self._input:
            args, kwargs = interleaver.handle(locations[0], (args, kwargs))
        output = self._body(self._module, *args, **kwargs)
        return interleaver.handle(locations[2], output) if self._output else output


class Handoffs:
    """Removes nnsight's controllers, and installs hand-offs during a trace.

    A module whose controller runs something else than the class's own `forward` (an accelerate
    hook, a patched instance) keeps it for good.

    Args:
        lm: nnsight's model.
    """

    def __init__(self, lm: Any) -> None:
        self._path = lm.path
        self._aside: dict[str, Any] = {}
        for path, module in lm._module.named_modules():
            controller = module.__dict__.get("forward")
            if not isinstance(controller, Controller) or "_hf_hook" in module.__dict__:
                continue
            if module.__dict__[STATE].body is not type(module).forward:
                continue
            self._aside[path] = module
            del module.__dict__["forward"]

    @contextmanager
    def on(self, paths: Sequence[str], read: Collection[str]) -> Iterator[None]:
        """Install the hand-offs of these modules.

        Args:
            read: nnsight's locations with subscribers.
        """
        chosen = [(path, self._aside[path]) for path in dict.fromkeys(paths) if path in self._aside]
        try:
            for path, module in chosen:
                module.__dict__["forward"] = _Handoff(
                    module,
                    gives_input=f"{self._path}.{path}.input" in read,
                    gives_output=f"{self._path}.{path}.output" in read,
                )
            yield
        finally:
            for _, module in chosen:
                module.__dict__.pop("forward", None)
