"""Linear layers whose weights lie in oneDNN's blocked layout, for decoding on a CPU.

torch reads a plain weight row by row; with 8 to 64 rows of input oneDNN's blocked layout takes a half to a
fifth of the time in float32. Prefill and single rows gain less or nothing: docs/performance.md.

The ops are those that torch's inductor emits for a frozen model. `torch.utils.mkldnn` replaces modules and
converts inputs and outputs at every call; inductor's freezing compiles the whole model, and hooks with it.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

#: largest difference between a packed and a plain layer, as a share of the largest output
_TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}
#: rows of input in the check of a layer
_CHECKED_ROWS = (1, 5, 33)


class _Linear(NamedTuple):
    """A linear layer of a model."""

    path: str
    module: nn.Module
    shared: bool  # another module holds the same weight

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
        layers: number of packed layers.
        bytes: memory that packing added: the packed weights, less the weights that were freed.
    """

    def __init__(self) -> None:
        self.layers = 0
        self.bytes = 0
        self._undo: list[Callable[[], None]] = []

    def add(self, linear: _Linear) -> None:
        """Pack one layer.

        The weight is freed if no other module holds it and the packed one gives the same bits back. Its
        parameter is then on the meta device: shape and dtype stay, and reading its numbers is an error.
        """
        module, stored = linear.module, linear.stored
        packed = _pack(linear.weight)
        vars(module)["forward"] = _forward(packed, linear.bias)
        self.layers += 1
        self.bytes += torch.ops.mkldnn._nbytes(packed)
        freed = not linear.shared and torch.equal(_unpack(packed), linear.weight)
        if freed:
            self.bytes -= stored.nbytes
            module.weight = nn.Parameter(stored.to("meta"), requires_grad=stored.requires_grad)
        # the closure must not hold a weight that was freed
        needs_grad, kept = stored.requires_grad, None if freed else stored
        del stored, linear

        def undo() -> None:
            del vars(module)["forward"]
            if kept is None:
                plain = _unpack(packed)
                plain = plain.t().contiguous() if isinstance(module, Conv1D) else plain
                module.weight = nn.Parameter(plain, requires_grad=needs_grad)

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

    Modules stay the same objects with their forward hooks. Experts whose weights are one 3-D parameter stay
    plain. Outputs have no gradients.
    """
    packed = PackedLinears()
    try:
        for linear in _linears(model):
            packed.add(linear)
    except BaseException:
        packed.undo()
        raise
    return packed


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
    for linear in _linears(model):
        shape = (*linear.weight.shape, linear.weight.dtype, linear.bias is None)
        if shape in seen:
            continue
        seen.add(shape)
        try:
            problem = _difference(linear)
        except RuntimeError as error:
            problem = str(error).partition("\n")[0]
        if problem is not None:
            return f"{linear.path}: {problem}"
    return None if seen else "the model has no plain linear layers"


def _linears(model: nn.Module) -> Iterator[_Linear]:
    """Linear layers that run their class's own forward."""
    modules = dict(model.named_modules())
    holders = Counter(id(p) for module in modules.values() for p in module._parameters.values())
    for path, module in modules.items():
        if type(module) in (nn.Linear, Conv1D) and "forward" not in vars(module):
            yield _Linear(path, module, holders[id(module.weight)] > 1)


def _difference(linear: _Linear) -> str | None:
    """Complaint if a packed layer's outputs differ from the plain layer's."""
    packed = _pack(linear.weight)
    forward = _forward(packed, linear.bias)
    generator = torch.Generator().manual_seed(0)
    bound = _TOLERANCE.get(linear.weight.dtype)
    if bound is None:
        return f"no packed layout for {linear.weight.dtype}"
    for rows in _CHECKED_ROWS:
        given = torch.randn(rows, linear.weight.shape[1], generator=generator).to(linear.weight.dtype)
        plain = linear.module(given)
        scale = float(plain.abs().max())
        difference = float((forward(given) - plain).abs().max())
        if not (math.isfinite(difference) and difference <= bound * scale):
            return f"packed outputs differ by {difference:.1e} from plain ones of up to {scale:.1e}"
    return None


def _pack(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), None)
    return packed


def _unpack(packed: Tensor) -> Tensor:
    """The weight in its plain layout, [outputs, inputs]."""
    plain: Tensor = packed.to_dense(packed.dtype)
    return plain


def _forward(packed: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
    linear: Any = torch.ops.mkldnn._linear_pointwise

    def forward(input: Tensor) -> Tensor:  # torch's own name: it may be given by keyword
        if input.requires_grad and torch.is_grad_enabled():
            raise RuntimeError("packed linear layers have no gradients; call PackedLinears.undo first")
        out: Tensor = linear(input, packed, bias, "none", [], "")
        return out

    return forward
