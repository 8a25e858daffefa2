"""Recorder of torch operations that refuses what a CUDA graph cannot hold."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

_aten: Any = torch.ops.aten
#: operations that bring a number to the host, or whose result has a shape that depends on numbers
REFUSED = frozenset(
    {
        _aten._local_scalar_dense,
        _aten.item,
        _aten.nonzero,
        _aten.nonzero_static,
        _aten.masked_select,
        _aten.unique_dim,
        _aten._unique2,
        _aten.unique_consecutive,
        _aten.equal,
        _aten.is_nonzero,
        _aten.bincount,
    }
)
_INDEXING = frozenset({_aten.index, _aten.index_put, _aten.index_put_, _aten._index_put_impl_})
_COPIES = frozenset({_aten._to_copy, _aten.copy_})
#: operations that make a tensor of host numbers
_FROM_HOST = frozenset({_aten.lift_fresh, _aten.lift_fresh_copy})


class NotCapturable(Exception):
    """An operation cannot stand in a CUDA graph."""


@dataclass(frozen=True, slots=True)
class Call:
    """One operation: its name, the shapes and dtypes of its tensors, and all other arguments."""

    name: str
    arguments: tuple[str, ...]
    storages: tuple[int, ...]  # addresses of the arguments that existed before the step


class _NoReading(TorchFunctionMode):
    """Refuses methods that read the memory of a tensor on a CPU without an operation."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in (Tensor.tolist, Tensor.numpy, Tensor.__array__):
            raise NotCapturable(f"{func.__name__} reads a tensor on the host")
        return func(*args, **(kwargs or {}))


class GraphReadiness(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records operations while it is entered.

    Args:
        static: tensors that live across steps; where they are used their addresses are recorded.

    Attributes:
        calls: operations in their order.
        new_bytes: memory of the tensors that they made.

    Raises:
        NotCapturable: on an operation of `REFUSED`, an index of bools, a copy between devices, a tensor
            made of numbers of the host, or a tensor read on the host.
    """

    def __init__(self, static: Sequence[Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Call] = []
        self.new_bytes = 0
        self._no_reading = _NoReading()
        self._static = {tensor.untyped_storage().data_ptr() for tensor in static}

    def __enter__(self) -> Self:
        self._no_reading.__enter__()  # type: ignore[no-untyped-call]
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._no_reading.__exit__(*error)  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = dict(kwargs or {})
        self._check(func, args, named)
        given = [value for value in _flat([*args, *named.values()]) if isinstance(value, Tensor)]
        storages = tuple(t.untyped_storage().data_ptr() for t in given)
        result = func(*args, **named)
        for made in _flat([result]):
            if isinstance(made, Tensor) and made.untyped_storage().data_ptr() not in storages:
                self.new_bytes += made.untyped_storage().nbytes()
        self.calls.append(
            Call(
                str(func),
                tuple(_described(value) for value in _flat([*args, *named.values()])),
                tuple(address for address in storages if address in self._static),
            )
        )
        return result

    @staticmethod
    def _check(func: Any, args: Sequence[Any], named: Mapping[str, Any]) -> None:
        packet = func.overloadpacket
        if packet in REFUSED:
            raise NotCapturable(f"{func} gives the host a number or makes a shape that depends on numbers")
        if packet in _FROM_HOST:
            raise NotCapturable(f"{func} makes a tensor of numbers of the host")
        if packet in _INDEXING:
            indices = [index for index in args[1] if isinstance(index, Tensor)]
            if any(index.dtype in (torch.bool, torch.uint8) for index in indices):
                raise NotCapturable(f"{func} with an index of bools depends on their number")
        devices = {value.device.type for value in _flat([*args]) if isinstance(value, Tensor)}
        target = named.get("device")
        if packet in _COPIES and (len(devices) > 1 or (target is not None and {target.type} != devices)):
            raise NotCapturable(f"{func} copies between devices")


def _flat(values: Sequence[Any]) -> list[Any]:
    found: list[Any] = []
    for value in values:
        if isinstance(value, list | tuple):
            found += _flat(value)
        else:
            found.append(value)
    return found


def _described(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{value.dtype} {tuple(value.shape)} {value.stride()}"
    return repr(value)
