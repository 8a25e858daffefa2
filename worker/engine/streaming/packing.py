"""Linear layers whose weights lie in oneDNN's blocked layout, for decoding on a CPU.

torch reads a plain weight row by row; with 8 to 64 rows of input oneDNN's blocked layout takes a half to a
fifth of the time in float32. Prefill gains nothing, and a single row takes up to a quarter longer.

The ops are those that torch's inductor emits for a frozen model. `torch.utils.mkldnn` replaces modules and
converts inputs and outputs at every call; inductor's freezing compiles the whole model, and hooks with it.
Here modules and their `forward` stay. The weight is a parameter that `torch.nn.functional.linear` treats
in a way of its own, so hooks, traces and whatever else calls a module see no difference.
"""

import math
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers.pytorch_utils import Conv1D

#: largest difference between a packed and a plain layer, as a share of the largest output
_TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}
#: rows of input in the check of a layer
_CHECKED_ROWS = (1, 5, 33)


class PackedWeight(nn.Parameter):
    """A weight with a packed copy, which linear layers use. All other functions see the plain weight.

    The plain weight may be on the meta device: shape and dtype stay, and reading its numbers is an error.
    """

    packed: Tensor

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not kwargs:
            if func is linear and len(args) > 1 and isinstance(args[1], cls):
                return args[1].apply(args[0], args[2] if len(args) > 2 else None)
            if func is torch.addmm and isinstance(args[2], cls):  # transformers' Conv1D
                return args[2].apply(args[1], args[0])
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    def apply(self, given: Tensor, bias: Tensor | None) -> Tensor:
        """The linear layer of [..., inputs]. Raises RuntimeError if gradients are asked for."""
        if torch.is_grad_enabled() and given.requires_grad:
            raise RuntimeError("packed linear layers have no gradients; call PackedLinears.undo first")
        return _linear_of(given, self.packed, bias)


class _Linear(NamedTuple):
    """Linear layers with one weight."""

    path: str  # of the first one
    module: nn.Module
    holders: list[nn.Module]  # every module with the weight, embeddings included

    @property
    def stored(self) -> nn.Parameter:
        weight = self.module.weight
        assert isinstance(weight, nn.Parameter)
        return weight

    @property
    def bias(self) -> Tensor | None:
        bias: Any = self.module.bias
        return bias  # type: ignore[no-any-return]

    @property
    def weight(self) -> Tensor:
        """[outputs, inputs]; transformers' Conv1D stores it transposed."""
        return self.stored.t() if isinstance(self.module, Conv1D) else self.stored


class PackedLinears:
    """Packed linear layers of a model, until `undo`.

    Attributes:
        layers: number of packed weights.
        bytes: memory that packing added: the packed weights, less the plain ones that were freed.
    """

    def __init__(self) -> None:
        self.layers = 0
        self.bytes = 0
        self._undo: list[Callable[[], None]] = []

    def add(self, layer: _Linear) -> None:
        """Pack one weight; the plain one is freed unless an embedding holds it too.

        It is also kept if the packed one does not give the same bits back.
        """
        stored, holders = layer.stored, layer.holders
        transposed = isinstance(layer.module, Conv1D)
        packed = _pack(layer.weight)
        freed = len(holders) == 1 and torch.equal(_unpack(packed), layer.weight)
        weight = PackedWeight(stored.data.to("meta") if freed else stored.data, stored.requires_grad)
        weight.packed = packed
        self.layers += 1
        self.bytes += torch.ops.mkldnn._nbytes(packed) - (stored.nbytes if freed else 0)
        for module in holders:
            module.weight = weight
        kept = None if freed else stored
        needs_grad = stored.requires_grad
        del stored, layer  # what was freed must not live on in `undo`

        def undo() -> None:
            plain = kept
            if plain is None:
                unpacked = _unpack(packed)
                unpacked = unpacked.t().contiguous() if transposed else unpacked
                plain = nn.Parameter(unpacked, requires_grad=needs_grad)
            for module in holders:
                module.weight = plain

        self._undo.append(undo)

    def undo(self) -> None:
        """Give the layers their plain weights back, bit by bit; no forward pass may run meanwhile."""
        while self._undo:
            self._undo.pop()()
        self.layers = self.bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.undo()


def pack(model: nn.Module) -> PackedLinears:
    """Pack the linear layers of a model in place; call it if `probe` returned None.

    Experts whose weights are one 3-D parameter stay plain. Outputs have no gradients.
    """
    packed = PackedLinears()
    try:
        for layer in list(_linears(model)):
            packed.add(layer)
    except BaseException:
        packed.undo()
        raise
    return packed


def extra_bytes(model: nn.Module) -> int:
    """Memory that packing needs at most: packed copies of shared weights, and two copies of one more."""
    sizes = [(len(layer.holders), layer.stored.nbytes) for layer in _linears(model)]
    kept = sum(size for holders, size in sizes if holders > 1)
    return kept + 2 * max((size for _, size in sizes), default=0)


@torch.no_grad()
def probe(model: nn.Module) -> str | None:
    """Reason not to pack a model; None if packing works.

    One layer of each shape is packed and compared with the plain layer.
    """
    devices = sorted({parameter.device.type for parameter in model.parameters()} - {"cpu"})
    if devices:
        return f"the model has weights on {', '.join(devices)}; only a CPU packs weights"
    onednn: Any = torch.backends.mkldnn
    if not onednn.is_available() or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return "this build of torch has no oneDNN"
    seen: set[tuple[object, ...]] = set()
    for layer in _linears(model):
        shape = (*layer.weight.shape, layer.weight.dtype, layer.bias is None)
        if shape in seen:
            continue
        seen.add(shape)
        try:
            problem = _difference(layer)
        except RuntimeError as error:
            problem = str(error).partition("\n")[0]
        if problem is not None:
            return f"{layer.path}: {problem}"
    return None if seen else "the model has no plain linear layers"


def _linears(model: nn.Module) -> Iterator[_Linear]:
    """Plain linear layers, those with one weight together."""
    holders: dict[int, list[nn.Module]] = {}
    for module in model.modules():
        if "weight" in module._parameters:
            holders.setdefault(id(module.weight), []).append(module)
    seen: set[int] = set()
    for path, module in model.named_modules():
        if type(module) in (nn.Linear, Conv1D) and type(module.weight) is nn.Parameter:
            if id(module.weight) not in seen:
                yield _Linear(path, module, holders[id(module.weight)])
            seen.add(id(module.weight))


def _difference(layer: _Linear) -> str | None:
    """Complaint if a packed layer's outputs differ from the plain layer's."""
    bound = _TOLERANCE.get(layer.weight.dtype)
    if bound is None:
        return f"no packed layout for {layer.weight.dtype}"
    weight = PackedWeight(layer.weight.data, requires_grad=False)
    weight.packed = _pack(layer.weight)
    generator = torch.Generator().manual_seed(0)
    for rows in _CHECKED_ROWS:
        given = torch.randn(rows, layer.weight.shape[1], generator=generator).to(layer.weight.dtype)
        plain = linear(given, layer.weight, layer.bias)
        scale = float(plain.abs().max())
        difference = float((linear(given, weight, layer.bias) - plain).abs().max())
        if not (math.isfinite(difference) and difference <= bound * scale):
            return f"packed outputs differ by {difference:.1e} from plain ones of up to {scale:.1e}"
    return None


def _pack(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), None)
    return packed


def _linear_of(given: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
    out: Tensor = torch.ops.mkldnn._linear_pointwise(given, packed, bias, "none", [], "")
    return out


def _unpack(packed: Tensor) -> Tensor:
    """The weight in its plain layout, [outputs, inputs]."""
    plain: Tensor = packed.to_dense(packed.dtype)
    return plain
