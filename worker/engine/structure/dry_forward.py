"""One short forward pass that records the tensor at each module location."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import torch
from torch.utils.hooks import RemovableHandle

from actograph.contract.errors import ModelRefused
from worker.engine.attention_calls import AttentionCall, watched
from worker.engine.locations import Side, place_of
from worker.engine.model import group
from worker.engine.model.device_errors import is_out_of_memory
from worker.engine.model.loaded import LoadedModel

Result = TypeVar("Result")
# sizes of the dry batch, unlike any head count or width
_ROWS, _TOKENS = 3, 11
_INTEGERS = (torch.int32, torch.int64)


# Identity of a tensor in a certain state: address, shape, strides, dtype, version
Identity = tuple[Any, ...]


def identity_of(tensor: torch.Tensor) -> Identity:
    """Tensors with the same identity are the same unchanged memory, viewed in the same way."""
    return _identity(tensor, tensor._version)


def _identity(tensor: torch.Tensor, version: int) -> Identity:
    return (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype, version)


@dataclass(frozen=True, slots=True)
class Visit:
    """The tensor at one module location in the dry forward."""

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


class Attended(NamedTuple):
    """One attention module in the dry forward.

    Attributes:
        result: [batch, tokens, heads * value width], as attention gave it.
        heads: of queries; `key_heads`: of keys and values.
        width: of a head's query and key; `value_width`: of its value.
        apart: queries, keys and values have memory of their own, so that writing to one changes no other.
    """

    result: torch.Tensor
    heads: int
    key_heads: int
    width: int
    value_width: int
    apart: bool


@dataclass(frozen=True)
class DryForward:
    """Results of the dry forward pass."""

    visits: list[Visit]  # in execution order; locations with one row per token only
    taken: Mapping[str, frozenset[Identity]]  # module path -> every tensor that it was given
    logits: torch.Tensor  # as the model returned them
    tail_only: frozenset[str]  # locations with the last token alone if no other logits are needed
    attended: Mapping[str, Attended] = field(default_factory=dict)  # by path of the attention module
    shared: Sequence[str] = ()  # locations of which each of several ranks has a part; they are no visits


def first_tensor(value: Any) -> Any:
    """The first element of nested tuples and lists: a module's main output."""
    while isinstance(value, tuple | list) and value:
        value = value[0]
    return value


class _Recorder:
    """Keeps the inputs and outputs of each module of one forward pass."""

    def __init__(self) -> None:
        self.calls: dict[str, int] = {}
        self.visits: dict[str, Visit] = {}
        self.taken: dict[str, frozenset[Identity]] = {}
        self.attended: dict[str, Attended] = {}
        self._kept: list[torch.Tensor] = []  # so that no address is used twice
        self._rows: set[tuple[int, int]] = set()  # address and size of tensors with one row per token

    def before(self, name: str, given: Sequence[Any]) -> None:
        if not name:
            return  # the model itself
        tensors = [t for t in given if isinstance(t, torch.Tensor)]
        self._kept += tensors
        self.taken[name] = frozenset(map(identity_of, tensors))
        self._count(f"{name}.input")
        tensor = first_tensor(given[0]) if given else None
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
            # [batch * tokens, ...] counts only as another view of [batch, tokens, ...]
            flat = (tensor.data_ptr(), tensor.numel()) in self._rows
            self._record(f"{name}.input", tensor, may_be_flat=flat)

    def after(self, name: str, given: Sequence[Any], output: Any) -> None:
        if not name:
            return
        self._count(f"{name}.output")
        parts = output if isinstance(output, tuple | list) else [output]
        for i, part in enumerate(parts):
            tensor = first_tensor(part) if i == 0 else part
            if not isinstance(tensor, torch.Tensor):
                continue
            # ids count as rows only beside a main output
            if not tensor.is_floating_point() and (i == 0 or tensor.dtype not in _INTEGERS):
                continue
            location = f"{name}.output.{i}" if i else f"{name}.output"
            self._record(location, tensor, may_be_flat=f"{name}.input" in self.visits)

    def showed(self, name: str, side: Side, tensor: torch.Tensor) -> None:
        """Take a tensor [batch, tokens, heads, width] that an attention module gives to its function."""
        self._count(f"{name}.{side}")
        self._record(f"{name}.{side}", tensor, may_be_flat=False)

    def called(self, name: str, call: AttentionCall) -> None:
        """Take what an attention module's function gave."""
        given = call.query, call.key, call.value
        self.attended[name] = Attended(
            call.attended.detach().flatten(2).clone(),
            heads=call.query.shape[1],
            key_heads=call.key.shape[1],
            width=call.query.shape[3],
            value_width=call.value.shape[3],
            apart=len({tensor.data_ptr() for tensor in given}) == len(given)
            and not any(
                step == 0 and size > 1
                for one in given
                for step, size in zip(one.stride(), one.shape, strict=True)
            ),
        )

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


@contextmanager
def watching(
    model: LoadedModel,
    before: Callable[[str, Sequence[Any]], None],
    after: Callable[[str, Sequence[Any], Any], None],
    showed: Callable[[str, Side, torch.Tensor], None] | None = None,
    called: Callable[[str, AttentionCall], None] | None = None,
) -> Iterator[None]:
    """Watch every module with plain torch hooks.

    Args:
        before: called with a module's path and its arguments.
        after: called with a module's path, its arguments and its output.
        showed: called with an attention module's path, a side and its tensor [batch, tokens, heads, width].
        called: called with an attention module's path and the call of its function.
    """
    names = {id(module): name for name, module in model.hf.named_modules()}

    def watch(name: str, module: torch.nn.Module) -> list[RemovableHandle]:
        def entered(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            before(name, [*args, *kwargs.values()])

        def left(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
            after(name, [*args, *kwargs.values()], output)

        return [
            module.register_forward_pre_hook(entered, with_kwargs=True),
            module.register_forward_hook(left, with_kwargs=True),
        ]

    handles = [handle for name, module in model.hf.named_modules() for handle in watch(name, module)]
    try:
        if showed is None:
            yield
        else:
            with watched(
                model,
                before=lambda module, side, tensor: showed(names[id(module)], side, tensor),
                after=None if called is None else lambda call: called(names[id(call.module)], call),
            ):
                yield
    finally:
        for handle in handles:
            handle.remove()


def dry_forward(model: LoadedModel) -> DryForward:
    """One short forward with plain torch hooks: every location that shows one row per token.

    That is a tensor [batch, tokens, ...], or [batch * tokens, ...] that a module made from one. Autograd is
    off by `no_grad`, not by inference mode: only then do tensors count their in-place changes.

    Raises:
        ModelRefused: the forward fails.
    """
    recorder = _Recorder()
    ids = torch.arange(_ROWS * _TOKENS, device=model.device).reshape(_ROWS, _TOKENS)
    ids = ids % int(model.text_config.vocab_size)
    with (
        torch.no_grad(),
        watching(model, recorder.before, recorder.after, recorder.showed, recorder.called),
    ):
        output = tried(
            model,
            "reads a text",
            lambda: model.hf(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False),
        )
    # a module that runs twice per forward has no one row per token
    visits = [v for v in recorder.visits.values() if recorder.calls[_handoff(v.location)] == 1]
    whole = group.whole([visit.value for visit in visits])
    return DryForward(
        visits=[visit for visit, is_whole in zip(visits, whole, strict=True) if is_whole],
        shared=[visit.location for visit, is_whole in zip(visits, whole, strict=True) if not is_whole],
        taken=recorder.taken,
        attended={
            name: one for name, one in recorder.attended.items() if recorder.calls[f"{name}.query"] == 1
        },
        logits=output.logits,
        tail_only=_tail_only(model, ids),
    )


def tried(model: LoadedModel, doing: str, action: Callable[[], Result]) -> Result:
    """Result of running the model's own code.

    Args:
        doing: the action, for the message: "fails when it ...".

    Raises:
        ModelRefused: the model's code failed. Errors of memory and device are passed on.
    """
    try:
        return action()
    except (ModelRefused, torch.AcceleratorError):  # the latter is the device's, not the model's
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise ModelRefused(
            f"{model.name}: {type(model.hf).__name__} fails when it {doing} "
            f"({type(error).__name__}: {error}); this model is not supported"
        ) from error


def _tail_only(model: LoadedModel, ids: torch.Tensor) -> frozenset[str]:
    """Locations with one row per sample in a forward that gives the last token's logits alone.

    While generating, transformers asks for no others if the model's forward has `logits_to_keep`.
    """
    if "logits_to_keep" not in inspect.signature(type(model.hf).forward).parameters:
        return frozenset()
    found: set[str] = set()

    def note(location: str, value: Any) -> None:
        tensor = first_tensor(value)
        if isinstance(tensor, torch.Tensor) and tensor.ndim >= 3 and tensor.shape[:2] == (_ROWS, 1):
            found.add(location)

    def after(name: str, given: Sequence[Any], output: Any) -> None:
        note(f"{name}.input", given)
        note(f"{name}.output", output)

    with torch.no_grad(), watching(model, lambda name, given: None, after):
        model.hf(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False, logits_to_keep=1)
    return frozenset(found)


def _handoff(location: str) -> str:
    """The location without the part of a tuple."""
    place = place_of(location)
    return f"{place.path}.{place.side}"
