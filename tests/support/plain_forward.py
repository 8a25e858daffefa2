"""The oracle of rows: one plain forward pass over all tokens, with torch hooks of the test's own."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor

from worker.engine.engine import Engine
from worker.engine.locations import ATTENDED, ModelHooks, place_of


def main_tensor(value: Any) -> Tensor:
    """The first tensor of what a module takes or gives."""
    while isinstance(value, tuple | list):
        value = value[0]
    assert isinstance(value, Tensor)
    return value


@contextmanager
def eager_calls(hf: Any, take: Callable[[Any, dict[str, Tensor]], None]) -> Iterator[None]:
    """Show the query, key and value [batch, heads, tokens, width] of each call of a model's own attention.

    The function of the model's file is replaced, whatever the product does to see it.
    """
    config = hf.config.get_text_config()
    file: Any = sys.modules[type(hf).__module__]
    own, function = config._attn_implementation, file.eager_attention_forward

    def shown(module: Any, query: Tensor, key: Tensor, value: Tensor, *rest: Any, **options: Any) -> Any:
        take(module, {"query": query, "key": key, "value": value})
        return function(module, query, key, value, *rest, **options)

    file.eager_attention_forward = shown
    config._attn_implementation = "eager"
    try:
        yield
    finally:
        file.eager_attention_forward = function
        config._attn_implementation = own


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
    attended: list[tuple[Any, str, Callable[[Tensor], None]]] = []

    def called(module: Any, given: dict[str, Tensor]) -> None:
        for owner, side, take in attended:
            if owner is module:
                take(given[side].transpose(1, 2))

    def at(name: str, take: Callable[[Tensor], None]) -> Callable[[], None]:
        info = of.structure.hooks.get(name)
        path, side, part = place_of(name if info is None else info.location)
        module = hf.get_submodule(path)
        if side in ATTENDED:
            attended.append((module, side, take))
            return lambda: None
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
        if attended:
            hooks.enter_context(eager_calls(hf, called))
        hf(input_ids=torch.tensor([list(ids)], device=hf.device), use_cache=False)
    return rows
