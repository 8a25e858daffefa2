"""The oracle of rows: one plain forward pass over all tokens, with torch hooks of the test's own."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from worker.engine.engine import Engine
from worker.engine.locations import ModelHooks, place_of


def main_tensor(value: Any) -> Tensor:
    """The first tensor of what a module takes or gives."""
    while isinstance(value, tuple | list):
        value = value[0]
    assert isinstance(value, Tensor)
    return value


def plain_rows(
    of: Engine | ModelHooks,
    ids: Sequence[int],
    names: Iterable[str],
    writes: Mapping[str, Callable[[Tensor], None]] | None = None,
) -> dict[str, Tensor]:
    """Rows of hooks or locations over these tokens.

    Args:
        writes: hook -> what changes its tensor in place, before it is read.
    """
    hf: Any = of.model.hf
    rows: dict[str, Tensor] = {}

    def at(name: str, take: Callable[[Tensor], None]) -> Callable[[], None]:
        info = of.structure.hooks.get(name)
        path, side, part = place_of(name if info is None else info.location)
        module = hf.get_submodule(path)
        if side == "input":
            before: Any = lambda _, args, kwargs: take(main_tensor(args or tuple(kwargs.values())))  # noqa: E731
            handle = module.register_forward_pre_hook(before, with_kwargs=True)
        else:
            after: Any = lambda _, args, out: take(main_tensor(out[part] if part else out))  # noqa: E731
            handle = module.register_forward_hook(after)
        return handle.remove  # type: ignore[no-any-return]

    def keep(name: str) -> Callable[[Tensor], None]:
        return lambda tensor: rows.__setitem__(name, tensor.detach().reshape(len(ids), -1).cpu().clone())

    with ExitStack() as hooks, torch.inference_mode():
        for name, write in (writes or {}).items():
            hooks.callback(at(name, write))
        for name in names:
            hooks.callback(at(name, keep(name)))
        hf(input_ids=torch.tensor([list(ids)], device=hf.device), use_cache=False)
    return rows
