"""One short forward pass that records what passes each module location."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from worker.engine.locations import place_of
from worker.engine.model.loaded import LoadedModel
from worker.engine.structure.trial import tried

# The dry batch: sizes that no head count or width is likely to share
_ROWS, _TOKENS = 3, 11
_INTEGERS = (torch.int32, torch.int64)


# What tells a tensor in a certain state from every other: address, shape, strides, dtype, version
Identity = tuple[Any, ...]


def identity_of(tensor: torch.Tensor) -> Identity:
    """Two tensors with the same identity are the same memory, seen alike, with no change between."""
    return _identity(tensor, tensor._version)


def _identity(tensor: torch.Tensor, version: int) -> Identity:
    return (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype, version)


@dataclass(frozen=True, slots=True)
class Visit:
    """What passed one module location in the dry forward."""

    location: str
    tensor: torch.Tensor  # kept alive, so that its address stays its own
    value: torch.Tensor  # [batch, tokens, ...]: a copy, as it was when it passed
    version: int
    flat: bool = False  # `tensor` is [batch * tokens, ...]

    @property
    def identity(self) -> Identity:
        return _identity(self.tensor, self.version)

    @property
    def width(self) -> int:
        return self.value[0, 0].numel()


@dataclass(frozen=True)
class DryForward:
    """What one forward pass showed."""

    visits: list[Visit]  # in execution order; locations with one row per token only
    changed_later: frozenset[str]  # locations whose tensor the model overwrites afterwards
    taken: Mapping[str, frozenset[Identity]]  # module path -> every tensor that it was given
    logits: torch.Tensor  # as the model returned them
    tail_only: frozenset[str]  # locations that show the last token alone where no other logits are wanted


def first_tensor(value: Any) -> Any:
    """The first element of nested tuples and lists: a module's main output."""
    while isinstance(value, tuple | list) and value:
        value = value[0]
    return value


class _Recorder:
    """Keeps what passes each module of one forward."""

    def __init__(self) -> None:
        self.calls: dict[str, int] = {}
        self.visits: dict[str, Visit] = {}
        self.taken: dict[str, frozenset[Identity]] = {}
        self._kept: list[torch.Tensor] = []  # so that no address is used twice
        self._rows: set[tuple[int, int]] = set()  # address and size of tensors with one row per token

    def before(self, name: str) -> Any:
        def hook(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            given = [*args, *kwargs.values()]
            tensors = [t for t in given if isinstance(t, torch.Tensor)]
            self._kept += tensors
            self.taken[name] = frozenset(map(identity_of, tensors))
            self._count(f"{name}.input")
            tensor = first_tensor(given[0]) if given else None
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                # [batch * tokens, ...] is believed where it is another view of [batch, tokens, ...]
                flat = (tensor.data_ptr(), tensor.numel()) in self._rows
                self._record(f"{name}.input", tensor, may_be_flat=flat)

        return hook

    def after(self, name: str) -> Any:
        def hook(_: Any, args: Any, output: Any) -> None:
            self._count(f"{name}.output")
            parts = output if isinstance(output, tuple | list) else [output]
            for i, part in enumerate(parts):
                tensor = first_tensor(part) if i == 0 else part
                if not isinstance(tensor, torch.Tensor):
                    continue
                # ids are rows beside a main output; a main output of ids is none
                if not tensor.is_floating_point() and (i == 0 or tensor.dtype not in _INTEGERS):
                    continue
                location = f"{name}.output.{i}" if i else f"{name}.output"
                self._record(location, tensor, may_be_flat=f"{name}.input" in self.visits)

        return hook

    def _count(self, location: str) -> None:
        self.calls[location] = self.calls.get(location, 0) + 1

    def _record(self, location: str, tensor: torch.Tensor, *, may_be_flat: bool) -> None:
        flat = False
        if tensor.ndim < 3 or tensor.shape[:2] != (_ROWS, _TOKENS):
            flat = may_be_flat and tensor.ndim >= 2 and tensor.shape[0] == _ROWS * _TOKENS
            if not flat:
                return
        if tensor.is_contiguous():
            self._rows.add((tensor.data_ptr(), tensor.numel()))
        value = tensor.detach().clone()
        if flat:
            value = value.reshape(_ROWS, _TOKENS, *value.shape[1:])
        self.visits[location] = Visit(location, tensor, value, tensor._version, flat)


def dry_forward(model: LoadedModel) -> DryForward:
    """One short forward with plain torch hooks: every location that shows one row per token.

    That is a tensor [batch, tokens, ...], or [batch * tokens, ...] that a module made from such.
    Autograd is off by `no_grad` and not by inference mode, because only so do tensors count
    their in-place changes.

    Raises:
        ModelRefused: the forward fails.
    """
    recorder = _Recorder()
    handles = []
    for name, module in model.hf.named_modules():
        if name:
            handles.append(module.register_forward_pre_hook(recorder.before(name), with_kwargs=True))
            handles.append(module.register_forward_hook(recorder.after(name)))
    ids = torch.arange(_ROWS * _TOKENS, device=model.device).reshape(_ROWS, _TOKENS)
    ids = ids % int(model.text_config.vocab_size)
    try:
        with torch.no_grad():
            output = tried(
                model,
                "reads a text",
                lambda: model.hf(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False),
            )
    finally:
        for handle in handles:
            handle.remove()
    visits = list(recorder.visits.values())
    return DryForward(
        # a module that runs twice per forward has no one row per token
        visits=[v for v in visits if recorder.calls[_handoff(v.location)] == 1],
        changed_later=frozenset(v.location for v in visits if v.tensor._version != v.version),
        taken=recorder.taken,
        logits=output.logits,
        tail_only=_tail_only(model, ids),
    )


def _tail_only(model: LoadedModel, ids: torch.Tensor) -> frozenset[str]:
    """Locations with one row per sample in a forward that gives the last token's logits alone.

    transformers asks for no others while it generates, of every model whose forward can be told so.
    """
    if "logits_to_keep" not in inspect.signature(type(model.hf).forward).parameters:
        return frozenset()
    found: set[str] = set()

    def note(location: str, value: Any) -> None:
        tensor = first_tensor(value)
        if isinstance(tensor, torch.Tensor) and tensor.ndim >= 3 and tensor.shape[:2] == (_ROWS, 1):
            found.add(location)

    def after(name: str) -> Any:
        def hook(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            note(f"{name}.input", [*args, *kwargs.values()])
            note(f"{name}.output", output)

        return hook

    handles = [
        module.register_forward_hook(after(name), with_kwargs=True)
        for name, module in model.hf.named_modules()
        if name
    ]
    try:
        with torch.no_grad():
            model.hf(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False, logits_to_keep=1)
    finally:
        for handle in handles:
            handle.remove()
    return frozenset(found)


def _handoff(location: str) -> str:
    """The location without the part of a tuple."""
    place = place_of(location)
    return f"{place.path}.{place.side}"
