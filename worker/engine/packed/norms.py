"""RMS norms as one kernel each, while a packed pass runs on a GPU.

A norm of transformers launches six to ten small kernels. `torch.nn.functional.rms_norm` launches one on CUDA,
from torch 2.9 on (https://github.com/pytorch/pytorch/pull/153666). It computes in float32 and rounds once;
many norms of transformers round twice in half precision, before they multiply with the weight and after.

What a module computes decides whether it is such a norm, not its name: first in float32 on a CPU, then on its
own device in its own dtype. The packed passes of a model are verified with these norms, too.

Modules stay, and so do their hooks: each has another `forward` during a pass.
"""

import copy
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm

#: scales of the rows that are compared: the epsilon decides about the smallest ones
_SCALES = (1e-4, 1e-3, 1e-2, 1.0, 100.0)
#: largest difference in float32, as a share of the larger number
_TOLERANCE = 1e-5


class NormKind(NamedTuple):
    """A norm `x / sqrt(mean(x²) + epsilon) * (weight + offset)` over the last dimension."""

    epsilon: float
    offset: float


class FusedNorms:
    """The RMS norms of a model that torch computes in one kernel.

    Attributes:
        count: of modules.
    """

    def __init__(self, model: nn.Module) -> None:
        kinds = dict[tuple[object, ...], NormKind | None]()
        self._forwards: list[tuple[nn.Module, Callable[[Tensor], Tensor]]] = []
        for module in model.modules():
            if not _may_be_norm(module):
                continue
            weight: Any = module.weight
            key = type(module), weight.shape, weight.dtype, weight.device, *_numbers(module)
            if key not in kinds:
                kind = kind_of(module)
                kinds[key] = kind if kind is not None and agrees(module, _fused(module, kind)) else None
            kind = kinds[key]
            if kind is not None:
                self._forwards.append((module, _fused(module, kind)))
        self.count = len(self._forwards)

    @contextmanager
    def used(self) -> Iterator[None]:
        """Let the norms of the model run fused."""
        for module, forward in self._forwards:
            vars(module)["forward"] = forward
        try:
            yield
        finally:
            for module, _ in self._forwards:
                vars(module).pop("forward", None)


def _may_be_norm(module: nn.Module) -> bool:
    """Whether a module has one weight, for the last dimension of its only input, and nothing else.

    A module with a `forward` of its own, such as accelerate's, keeps it.
    """
    weight = module._parameters.get("weight")
    return (
        isinstance(weight, nn.Parameter)
        and weight.ndim == 1
        and weight.is_floating_point()
        and [name for name, one in module._parameters.items() if one is not None] == ["weight"]
        and not module._buffers
        and not module._modules
        and not isinstance(module, nn.RMSNorm)  # it is fused already
        and "forward" not in vars(module)
        and len(inspect.signature(type(module).forward).parameters) == 2
    )


def _numbers(module: nn.Module) -> list[float]:
    """Numbers among the attributes of a module, of which one may be its epsilon."""
    return [number for number in vars(module).values() if isinstance(number, float)]


def kind_of(module: nn.Module) -> NormKind | None:
    """Find the formula of an RMS norm, in float32 on a CPU with another weight; None for other modules."""
    width = module._parameters["weight"].shape[0]  # type: ignore[union-attr]
    weight, rows = torch.randn(width, generator=torch.Generator().manual_seed(1)), _rows(width)
    twin = copy.copy(module)
    twin.__dict__["_parameters"] = {"weight": nn.Parameter(weight, requires_grad=False)}
    try:
        due = type(module).forward(twin, rows)
    except Exception:  # noqa: BLE001 (it is something else, and keeps its forward)
        return None
    if not isinstance(due, Tensor) or due.shape != rows.shape:
        return None
    for epsilon in _numbers(module):
        for offset in (0.0, 1.0):
            found = rms_norm(rows, (width,), weight + offset, epsilon)
            if torch.allclose(found, due, rtol=_TOLERANCE, atol=0):
                return NormKind(epsilon, offset)
    return None


def agrees(module: nn.Module, fused: Callable[[Tensor], Tensor]) -> bool:
    """Whether a fused norm gives the rows of the module's own forward, within two roundings."""
    weight: Any = module.weight
    rows = _rows(weight.shape[0]).to(weight.device, weight.dtype)
    with torch.inference_mode():
        due, found = type(module).forward(module, rows), fused(rows)
    numbers = torch.finfo(weight.dtype)
    bound, least = max(_TOLERANCE, 2 * numbers.eps), 4 * numbers.eps * numbers.smallest_normal
    return found.dtype == due.dtype and torch.allclose(found.double(), due.double(), rtol=bound, atol=least)


def _rows(width: int) -> Tensor:
    scales = torch.tensor(_SCALES)
    return torch.randn(len(scales), width, generator=torch.Generator().manual_seed(0)) * scales[:, None]


def _fused(module: nn.Module, kind: NormKind) -> Callable[[Tensor], Tensor]:
    weight = module._parameters["weight"]
    assert weight is not None
    if not kind.offset:
        return partial(_plain, module, weight, kind.epsilon)
    return partial(_scaled, kind.offset + weight.detach().float(), kind.epsilon)


def _plain(module: nn.Module, weight: Tensor, epsilon: float, x: Tensor) -> Tensor:
    if x.dtype != weight.dtype:  # what the result's dtype is, the module says
        own: Tensor = type(module).forward(module, x)
        return own
    return rms_norm(x, weight.shape, weight, epsilon)


def _scaled(weight: Tensor, epsilon: float, x: Tensor) -> Tensor:
    """With weight and offset added in float32; half precision would round the sum."""
    return rms_norm(x.float(), weight.shape, weight, epsilon).to(x.dtype)
