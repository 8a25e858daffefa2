"""Linear weights in oneDNN's blocked layout, for decoding on a CPU.

torch reads a plain weight row by row. With 4 to 64 rows of input, oneDNN's blocked layout takes a half to a
fifth of the time in float32; with one row the plain layout is faster, so both are kept. The ops are those
that torch's inductor emits for a frozen model.

Modules and their `forward` stay: the weight is a parameter that `torch.nn.functional.linear` treats in a way
of its own. So hooks, traces and whatever else calls a module see no difference.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers.pytorch_utils import Conv1D

from worker.engine.model.memory import available_bytes

#: largest difference between packed and plain outputs, as a share of the largest output
_TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}
#: rows of input in the check of a layer
_CHECKED_ROWS = (2, 5, 33)
#: largest share of the free memory for packed copies
_MEMORY_SHARE = 0.5


class PackedWeight(nn.Parameter):
    """A weight with a packed copy, which linear layers use. All other functions see the plain weight."""

    packed: Tensor

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not kwargs:
            if func is linear and len(args) > 1 and isinstance(args[1], cls) and _has_rows(args[0]):
                return _linear(args[0], args[1].packed, args[2] if len(args) > 2 else None)
            # transformers' Conv1D, whose weight is [inputs, outputs]
            if func is torch.addmm and isinstance(args[2], cls) and _has_rows(args[1]):
                return _linear(args[1], args[2].packed, args[0])
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


@torch.no_grad()
def pack(model: nn.Module) -> str:
    """Pack the linear layers of a model, or none of them. Returns what was done, and why.

    One layer of each shape is compared with its plain result first. Experts whose weights are one
    3-D parameter stay plain.
    """
    layers = [module for module in model.modules() if _is_plain(module)]
    if (reason := _reason_against(model, layers)) is not None:
        return f"linear weights stay plain: {reason}"
    made: dict[int, PackedWeight] = {}
    checked: set[tuple[object, ...]] = set()
    for layer in layers:
        weight: Any = layer.weight
        if id(weight) in made:
            continue
        kind = (type(layer), *weight.shape, weight.dtype, layer.bias is None)
        try:
            new = _packed(layer)
            problem = None if kind in checked else _difference(layer, new)
        except RuntimeError as error:
            problem = str(error).partition("\n")[0]
        if problem is not None:
            return f"linear weights stay plain: {problem}"
        checked.add(kind)
        made[id(weight)] = new
    for module in model.modules():  # embeddings that share a weight included
        own = made.get(id(module._parameters.get("weight")))
        if own is not None:
            module.weight = own
    size = sum(weight.nbytes for weight in made.values())
    return f"{len(made)} linear weights are packed for oneDNN, which takes {size / 1e9:.2f} GB more"


def _is_plain(module: nn.Module) -> bool:
    """Whether a layer is a product with a dense weight of floats, and nothing else.

    A quantised layer is not, however its package keeps it: as a tensor of a class of its own, as integers, or
    as floats beside a `forward` that rounds its input.
    """
    weight = module._parameters.get("weight")
    return (
        type(module) in (nn.Linear, Conv1D)
        and type(module._parameters) is dict
        and "forward" not in vars(module)
        and type(weight) is nn.Parameter
        and weight.layout is torch.strided
        and weight.dtype in _TOLERANCE
    )


def _reason_against(model: nn.Module, layers: list[nn.Module]) -> str | None:
    others = sorted({parameter.device.type for parameter in model.parameters()} - {"cpu"})
    if others:
        return f"the model has weights on {', '.join(others)}, and only a CPU packs"
    onednn: Any = torch.backends.mkldnn
    if not onednn.is_available() or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return "this build of torch has no oneDNN"
    sizes = {id(layer.weight): layer.weight.nbytes for layer in layers if isinstance(layer.weight, Tensor)}
    needed, room = sum(sizes.values()), available_bytes(torch.device("cpu"))
    if needed > _MEMORY_SHARE * room:
        return f"packed copies would take {needed / 1e9:.2f} GB of {room / 1e9:.2f} GB of free memory"
    return None if layers else "the model has no plain linear layer"


def _packed(layer: nn.Module) -> PackedWeight:
    weight: Any = layer.weight
    new = PackedWeight(weight.data, requires_grad=False)
    outputs_first = weight.t() if isinstance(layer, Conv1D) else weight
    new.packed = torch.ops.mkldnn._reorder_linear_weight(outputs_first.detach().contiguous(), None)
    return new


def _difference(layer: nn.Module, packed: PackedWeight) -> str | None:
    """Complaint if packed outputs differ from plain ones."""
    plain: Any = layer.weight
    bound = _TOLERANCE.get(plain.dtype)
    if bound is None:
        return f"there is no packed layout for {plain.dtype}"
    weight: Tensor = plain.t() if isinstance(layer, Conv1D) else plain
    bias: Any = layer.bias
    generator = torch.Generator().manual_seed(0)
    for rows in _CHECKED_ROWS:
        given = torch.randn(rows, weight.shape[1], generator=generator).to(plain.dtype)
        expected = linear(given, weight, bias)
        apart = float((_linear(given, packed.packed, bias) - expected).abs().max())
        if not (math.isfinite(apart) and apart <= bound * float(expected.abs().max())):
            return f"packed outputs of shape {tuple(weight.shape)} differ by {apart:.1e}"
    return None


def _has_rows(given: Tensor) -> bool:
    return given.numel() > given.shape[-1]


def _linear(given: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    out: Tensor = torch.ops.mkldnn._linear_pointwise(given, packed, bias, "none", [], "")
    return out
