"""Plain hooks at a module's input or output, and their tensors as rows."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from actograph.contract.errors import CaptureFailed
from worker.engine.locations import Place


def at_module(module: nn.Module, place: Place, take: Callable[[Any], None]) -> Any:
    """Call `take` with the value at a location in every forward pass; returns torch's handle."""

    def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        take(args[0] if args else next(iter(kwargs.values())))

    def after(_: nn.Module, args: Any, output: Any) -> None:
        take(output[place.part] if place.part else output)

    if place.side == "input":
        return module.register_forward_pre_hook(before, with_kwargs=True)
    return module.register_forward_hook(after)


def tokens_first(value: Any, count: int, location: str, *, flat: bool) -> Tensor:
    """The main tensor of a value as [tokens, ...]: a view, so that writing reaches the model.

    Args:
        flat: the tensor has no dimension for the batch.

    Raises:
        CaptureFailed: the tensor does not have `count` tokens.
    """
    while isinstance(value, tuple | list):
        value = value[0]
    tensor: Tensor = value
    if not flat and tensor.ndim >= 3 and tensor.shape[0] == 1:
        tensor = tensor[0]
    if tensor.shape[0] != count:
        raise CaptureFailed(
            f"{location}: a tensor of shape {tuple(tensor.shape)} came where {count} rows were due"
        )
    return tensor
