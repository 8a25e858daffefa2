"""One short forward pass that records what passes each module location."""

from dataclasses import dataclass
from typing import Any

import torch

from worker.engine.model import LoadedModel

# The dry batch: sizes that no head count or width is likely to share
_ROWS, _TOKENS = 3, 11


@dataclass(frozen=True, slots=True)
class Visit:
    """What passed one module location in the dry forward."""

    location: str
    tensor: torch.Tensor  # kept alive, so that its address stays its own
    value: torch.Tensor  # a copy, as it was when it passed
    version: int

    @property
    def identity(self) -> tuple[Any, ...]:
        """Two locations with the same identity saw the same tensor in the same state."""
        t = self.tensor
        return (t.data_ptr(), tuple(t.shape), t.stride(), t.dtype, self.version)

    @property
    def width(self) -> int:
        return self.value[0, 0].numel()


@dataclass(frozen=True)
class DryForward:
    """What one forward pass showed."""

    visits: list[Visit]  # in execution order; locations with one row per token only
    changed_later: frozenset[str]  # locations whose tensor the model overwrites afterwards
    logits: torch.Tensor  # as the model returned them


def first_tensor(value: Any) -> Any:
    """The first element of nested tuples and lists: a module's main output."""
    while isinstance(value, tuple | list) and value:
        value = value[0]
    return value


def dry_forward(model: LoadedModel) -> DryForward:
    """One short forward with plain torch hooks: every location that shows one row per token.

    Autograd is off by `no_grad` and not by inference mode, because only so do tensors count
    their in-place changes.
    """
    calls: dict[str, int] = {}
    visits: list[Visit] = []

    def record(location: str, value: Any) -> None:
        calls[location] = calls.get(location, 0) + 1
        tensor = first_tensor(value)
        if (
            isinstance(tensor, torch.Tensor)
            and tensor.is_floating_point()
            and tensor.ndim >= 3
            and tensor.shape[:2] == (_ROWS, _TOKENS)
        ):
            visits.append(Visit(location, tensor, tensor.detach().clone(), tensor._version))

    def before(name: str) -> Any:
        def hook(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            record(f"{name}.input", args[0] if args else next(iter(kwargs.values()), None))

        return hook

    def after(name: str) -> Any:
        def hook(_: Any, args: Any, output: Any) -> None:
            record(f"{name}.output", output)

        return hook

    handles = []
    for name, module in model.hf.named_modules():
        if name:
            handles.append(module.register_forward_pre_hook(before(name), with_kwargs=True))
            handles.append(module.register_forward_hook(after(name)))
    ids = torch.arange(_ROWS * _TOKENS, device=model.device).reshape(_ROWS, _TOKENS)
    ids = ids % int(model.text_config.vocab_size)
    try:
        with torch.no_grad():
            output = model.hf(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    changed = frozenset(v.location for v in visits if v.tensor._version != v.version)
    # a module that runs twice per forward has no one row per token
    once = [v for v in visits if calls[v.location] == 1]
    return DryForward(visits=once, changed_later=changed, logits=output.logits)
