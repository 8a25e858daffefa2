"""A GPU that is not there: the engine runs on fake CUDA tensors, and every launch, copy and wait is seen.

`FakeTensorMode` gives tensors of device cuda a shape and no memory; a dispatch mode in front of it counts
what would reach the card, and the bytes that are alive. Numbers, times and fragmentation are not covered.

It patches torch for the whole process, so it is imported in a process of its own alone:
`python -m tests.support.fake_cuda_cases CASE`.
"""

import ctypes
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import transformers.utils.import_utils as transformers_imports
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM, Gemma2Config, PreTrainedConfig, Qwen3Config, Qwen3MoeConfig

from actograph.contract.models import LocationInfo, ModelStructure
from worker.engine.locations import ModelHooks
from worker.engine.model.loaded import LoadedModel
from worker.engine.packed import decoding, flex, norms, verification
from worker.engine.stream import delivery, loop

GB = 1 << 30
#: index of a device's guard in c10's registry: `c10::DeviceType`
_CUDA, _META = 1, 14
_GUARDS = "_ZN3c104impl26device_guard_impl_registryE"

_QWEN3 = {"head_dim": 128, "vocab_size": 151_936, "max_position_embeddings": 40_960}
#: shapes of models that people have: Qwen3-0.6B, Qwen3-8B, Qwen3-30B-A3B and gemma-2-9b
SHAPES: dict[str, Callable[[], PreTrainedConfig]] = {
    "0.6b": lambda: Qwen3Config(
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        tie_word_embeddings=True,
        **_QWEN3,
    ),
    "8b": lambda: Qwen3Config(
        hidden_size=4096,
        intermediate_size=12_288,
        num_hidden_layers=36,
        num_attention_heads=32,
        num_key_value_heads=8,
        tie_word_embeddings=False,
        **_QWEN3,
    ),
    "30b-a3b": lambda: Qwen3MoeConfig(
        hidden_size=2048,
        intermediate_size=6144,
        moe_intermediate_size=768,
        num_experts=128,
        num_experts_per_tok=8,
        num_hidden_layers=48,
        num_attention_heads=32,
        num_key_value_heads=4,
        norm_topk_prob=True,
        tie_word_embeddings=False,
        **_QWEN3,
    ),
    "gemma2": lambda: Gemma2Config(
        hidden_size=3584,
        intermediate_size=14_336,
        num_hidden_layers=42,
        num_attention_heads=16,
        num_key_value_heads=8,
    ),
}

#: rows of graphs, fewer than on a real card: each one runs three passes here
BUCKETS = (1, 8, 64)
REAL_BUCKETS = decoding._BUCKETS

#: ops that read a number of the device, so the host waits for it
_READS = {
    "_local_scalar_dense",
    "nonzero",
    "_unique2",
    "masked_select",
    "equal",
    "unique_consecutive",
    "bincount",
}
#: ops that are one kernel on CUDA, though a CPU has none
_OF_CUDA = {"_fused_rms_norm"}
#: ops that launch nothing
_SILENT = {
    "empty",
    "empty_strided",
    "empty_like",
    "new_empty",
    "new_empty_strided",
    "lift_fresh",
    "lift_fresh_copy",
    "detach",
    "detach_",
    "_unsafe_view",
    "alias",
}


class Pass:
    """Counts of one forward pass and of the choice of tokens after it."""

    def __init__(self, kind: str, rows: int) -> None:
        self.kind, self.rows = kind, rows
        #: launch, replay, wait, hidden temporary; copies: h2d and d2h, which block, h2d async, d2h async
        self.counts: Counter[str] = Counter()
        #: the same, inside the model's forward alone
        self.inside: Counter[str] = Counter()
        #: of each wait of the host, how many passes it had launched after the one that it waited for
        self.late: list[int] = []

    @property
    def stalls(self) -> int:
        """Blocking copies and waits."""
        return sum(self.counts[name] for name in ("wait", "h2d", "d2h"))

    @property
    def stalls_inside(self) -> int:
        """The same inside the forward."""
        return sum(self.inside[name] for name in ("wait", "h2d", "d2h"))


class Card(TorchDispatchMode):
    """Counts what reaches the device. It is entered inside FakeTensorMode, so it sees each op first.

    Attributes:
        size: bytes of the card.
        live: bytes of tensors on it.
        peak: most of them since the last reset.
        passes: of the run, the first one being what comes before it.
        unnamed: `torch.cuda` calls that named no device, and pinned memory where none was made current.
        current: devices that were made the current one.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.live, self.peak = size, 0, 0
        self.passes: list[Pass] = []
        self.capturing = self.in_forward = False
        #: what runs now runs in the delivery thread
        self.elsewhere = False
        self.graphs: list[Any] = []
        #: a pass of the loop runs; and graphs that were captured meanwhile
        self.in_pass, self.captured_in_passes = False, 0
        self.unnamed: list[str] = []
        self.current: list[Any] = []
        self._known: dict[int, int] = {}
        self._pinned: set[int] = set()
        self.begin("setup", 0)

    def begin(self, kind: str, rows: int) -> None:
        self.now = Pass(kind, rows)
        self.passes.append(self.now)

    def event(self, what: str, op: str) -> None:
        self.now.counts[what] += 1
        self.now.inside[what] += self.in_forward
        if self.capturing and what in ("wait", "h2d", "d2h"):
            raise torch.AcceleratorError(  # type: ignore[call-arg]
                f"CUDA error: operation not permitted when stream is capturing ({op})"
            )

    def launch(self) -> None:
        self.now.counts["launch"] += 1
        self.now.inside["launch"] += self.in_forward

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.partition("::")[2]
        if func.namespace == "prim":
            return func(*args, **kwargs)
        if name == "linear" and (product := self._product(*args)) is not None:
            return product
        key = "CompositeImplicitAutograd"
        if (
            func.namespace == "aten"
            and name not in _OF_CUDA
            and torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key)
        ):
            with self:
                made = func.decompose(*args, **kwargs)
            if made is not NotImplemented:
                return made
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        on_card = [x for x in given if x.device.type == "cuda"]
        if name in _READS:
            if on_card:
                self.launch()
                self.event("wait", name)
            if (read := _made_up(name, given[0])) is not None:
                return read
        out = func(*args, **kwargs)
        made = [x for x in tree_leaves(out) if isinstance(x, torch.Tensor)]
        pinned = bool(kwargs.get("pin_memory"))
        if pinned and not self.current:
            self.unnamed.append(f"pin_memory at {_line_of_ours()}")
        for tensor in made:
            self._hold(tensor, pinned=pinned)
        on_host = [x for x in given if x.device.type == "cpu"]
        to_card = any(x.device.type == "cuda" for x in made)
        moves = bool(on_card) != to_card or (on_card and on_host)
        if name in ("_to_copy", "copy_") and moves:
            waits = not (kwargs.get("non_blocking") or (name == "copy_" and args[2:3] == (True,)))
            self._copied(name, given[-1] if name == "copy_" else given[0], made[0], waits=waits)
        elif (on_card or to_card) and name not in _SILENT and not func.is_view:
            self.launch()
            if name in _OF_CUDA and not given[0].is_contiguous():
                self.launch()  # it copies them first
            places = tree_leaves(args[1]) if name.startswith("index") else []
            if any(isinstance(x, torch.Tensor) and x.dtype == torch.bool for x in places):
                self.event("wait", f"{name} by a mask")
            if name.startswith("index_put") and on_host:
                self.event("h2d", f"{name} of a host value")
        return out

    def _product(self, x: Any, weight: Any, bias: Any = None) -> Any:
        """A linear layer's product as one launch; None if it may be more. Python's decomposition is slow."""
        if bias is not None or not (x.is_cuda and weight.is_cuda and x.is_contiguous()):
            return None
        self.launch()
        made = x.new_empty(*x.shape[:-1], weight.shape[0])
        self._hold(made, pinned=False)
        return made

    def _copied(self, name: str, source: Any, target: Any, *, waits: bool) -> None:
        from_card = source.device.type == "cuda"
        on_host = target if from_card else source
        way = "d2h" if from_card else "h2d"
        pinned = on_host.untyped_storage()._cdata in self._pinned
        self.event(way if waits or not pinned else f"{way} async", name)
        apart = source if from_card else target
        if not apart.is_contiguous():  # torch gathers a strided tensor on the card first
            self.event("hidden temporary", name)
            self.launch()
            self._reach(self.live + source.nbytes)

    def _hold(self, tensor: Any, *, pinned: bool) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if pinned:
            self._pinned.add(key)
            weakref.finalize(storage, self._pinned.discard, key)
        if tensor.device.type != "cuda" or key in self._known:
            return
        size = -(-storage.nbytes() // 512) * 512  # as torch's allocator rounds
        self._known[key] = size
        self.live += size
        self._reach(self.live)
        weakref.finalize(storage, self._drop, key)

    def _reach(self, size: int) -> None:
        self.peak = max(self.peak, size)

    def _drop(self, key: int) -> None:
        self.live -= self._known.pop(key, 0)


def _made_up(name: str, of: Any) -> Any:
    """A result of an op whose result depends on numbers; None if the op can run."""
    if name == "_local_scalar_dense":
        return _number(of.dtype)
    if name == "equal":
        return True
    if name == "nonzero":
        return of.new_empty((max(1, of.numel() // 16), of.ndim), dtype=torch.int64)
    if name == "_unique2":
        return of, of.clone(), of.clone()
    return None


def _number(dtype: torch.dtype) -> Any:
    """False, 0.5 or 7, which ends no text."""
    return False if dtype == torch.bool else 0.5 if dtype.is_floating_point else 7


def _line_of_ours() -> str:
    """The innermost line of the worker's code, or else of transformers'."""
    frame: Any = sys._getframe(2)
    other = ""
    while frame:
        name = frame.f_code.co_filename
        if "/worker/" in name:
            return f"{Path(name).name}:{frame.f_lineno}"
        if not other and "/transformers/" in name:
            other = f"{Path(name).name}:{frame.f_lineno}"
        frame = frame.f_back
    return other


#: the card of the world that runs
_card: list[Card] = []


def card() -> Card:
    return _card[-1]


class _Inline:
    """A queue whose work is done where it is queued: fake tensors are not for two threads."""

    def put(self, work: Callable[[], None] | None) -> None:
        if work is not None:
            card().elsewhere = True
            try:
                work()
            finally:
                card().elsewhere = False

    def get(self) -> None:
        return None


class _Graph:
    """Counts its replays."""

    def replay(self) -> None:
        card().now.counts["replay"] += 1


@contextmanager
def _graph(graph: Any, pool: Any = None, stream: Any = None, **_: Any) -> Iterator[None]:
    _named("graph", stream)
    card().capturing = True
    try:
        yield
    finally:
        card().capturing = False
    card().graphs.append(graph)
    card().captured_in_passes += card().in_pass


def _named(call: str, device: Any) -> None:
    if device is None:
        card().unnamed.append(f"{call} at {_line_of_ours()}")


def _stream(device: Any = None, **_: Any) -> Any:
    _named("stream", device)
    return SimpleNamespace(
        synchronize=lambda: card().event("wait", "stream"),
        wait_stream=lambda _: None,
        wait_event=lambda _: None,
        record_event=lambda: SimpleNamespace(synchronize=partial(_awaited, card().now)),
        device=device,
    )


def _awaited(of: Pass) -> None:
    if card().elsewhere:
        return
    card().event("wait", "event")
    now, passes = card().now, card().passes
    launched = bool(now.inside["launch"] or now.counts["replay"])
    now.late.append(passes.index(now) - passes.index(of) - (not launched) if of in passes else 0)


@contextmanager
def _device(device: Any) -> Iterator[None]:
    card().current.append(device)
    try:
        yield
    finally:
        card().current.pop()


def _synchronize(device: Any = None) -> None:
    _named("synchronize", device)
    card().event("wait", "device")


def _sized(read: Callable[[Card], int]) -> Callable[..., int]:
    def size(device: Any = None) -> int:
        _named("memory", device)
        return read(card())

    return size


def _reset_peak(device: Any = None) -> None:
    _named("memory", device)
    card().peak = card().live


def _tolist(tensor: Any) -> Any:
    if tensor.device.type == "cuda":
        card().event("d2h", "tolist")
    return np.full(tuple(tensor.shape), _number(tensor.dtype)).tolist()


def _flex_attention(query: Any, keys: Any, values: Any, *_: Any, return_aux: Any = None) -> Any:
    card().launch()
    out = query.new_empty(*query.shape[:3], values.shape[-1])
    total = query.new_empty(query.shape[:3], dtype=torch.float32)
    return out if return_aux is None else (out, SimpleNamespace(lse=total))


def _without_modes(inner: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any) -> Any:
        with _disable_current_modes():
            return inner(*args)

    return call


_set = FakeTensor.__setitem__


def _setitem(tensor: Any, index: Any, value: Any) -> None:
    # x[tensor] = number: C++ makes the number on the device past every mode
    if isinstance(index, torch.Tensor) and isinstance(value, int | float):
        value = torch.full((), value, dtype=tensor.dtype, device=tensor.device)
    _set(tensor, index, value)


def available() -> bool:
    """Whether this build of torch has the registry of device guards."""
    try:
        _guards()
    except (OSError, ValueError):
        return False
    return True


def _guards() -> Any:
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    return (ctypes.c_void_p * 24).in_dll(library, _GUARDS)


def install() -> None:
    """Patch torch, for as long as the process lives."""
    guards = _guards()
    guards[_CUDA] = guards[_META]  # a build for CPUs has none for cuda; meta's does nothing
    patches: dict[Any, dict[str, Any]] = {
        FakeTensor: {
            "__setitem__": _setitem,
            "tolist": _tolist,
            "numpy": lambda self: np.zeros(tuple(self.shape), str(self.dtype)[6:]),
            "data_ptr": lambda self: self.untyped_storage()._cdata + self.storage_offset(),
        },
        # transformers leaves out its checks of masks for fake tensors, and they wait
        transformers_imports: {"is_fake_tensor": lambda *_: False},
        torch.cuda: {
            "get_device_capability": lambda *_: (9, 0),
            "init": lambda: None,
            "current_stream": _stream,
            "Stream": _stream,
            "synchronize": _synchronize,
            "device": _device,
            "mem_get_info": lambda *_: (card().size - card().live, card().size),
            "memory_reserved": _sized(lambda one: one.live),
            "memory_allocated": _sized(lambda one: one.live),
            "max_memory_allocated": _sized(lambda one: one.peak),
            "reset_peak_memory_stats": _reset_peak,
            "graph_pool_handle": lambda: 0,
            "stream": lambda _: nullcontext(),
            "graph": _graph,
            "CUDAGraph": _Graph,
        },
        delivery: {"SimpleQueue": _Inline},
        # a compiled kernel: one launch
        flex: {"available": lambda: True, "_compiled": lambda: _flex_attention},
        # it compares real numbers
        norms: {"kind_of": _without_modes(norms.kind_of), "agrees": lambda *_: True},
        # comparisons of numbers
        decoding: {"alike": lambda *_: True, "_BUCKETS": BUCKETS},
        verification: {"alike": lambda *_: True},
        loop.Loop: {"_run": _watched_run(loop.Loop._run)},
    }
    for owner, replaced in patches.items():
        for name, value in replaced.items():
            setattr(owner, name, value)


def _watched_run(inner: Callable[..., None]) -> Callable[..., None]:
    def run(self: Any, slots: Sequence[Any], **options: Any) -> None:
        texts = sum(not slot.prefills for slot in slots)
        kind = "decode" if texts == len(slots) else "mixed" if texts else "prefill"
        card().begin(kind, len(slots))
        card().in_pass = True
        try:
            inner(self, slots, **options)
        finally:
            card().in_pass = False

    return run


def _watch_forward(hf: Any) -> None:
    def inside(value: bool) -> Callable[..., None]:
        return lambda *_: setattr(card(), "in_forward", value)

    hf.register_forward_pre_hook(inside(True))
    hf.register_forward_hook(inside(False), always_call=True)


@contextmanager
def world(
    shape: str,
    *,
    size: int = 80 * GB,
    layers: int | None = None,
    dtype: torch.dtype = torch.bfloat16,
    heads: bool = False,
) -> Iterator[tuple[ModelHooks, Card]]:
    """A model of a real shape on a card of `size` bytes: two points of each layer, and the logits.

    Args:
        heads: the points of attention's heads, too.
    """
    config = SHAPES[shape]()
    if layers is not None:
        config.num_hidden_layers = layers
        if getattr(config, "layer_types", None):
            config.layer_types = config.layer_types[:layers]
    _card[:] = [Card(size)]
    with FakeTensorMode(allow_non_fake_inputs=True), card(), torch.no_grad():
        with torch.device("cuda"):
            hf = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
        _watch_forward(hf)
        name = str(dtype).removeprefix("torch.")
        depth, width = config.num_hidden_layers, config.hidden_size
        tensors = {
            f"model.layers.{i}.{part}output": LocationInfo(width=width, dtype=name)
            for i in range(depth)
            for part in ("mlp.", "")
        }
        group = config.num_attention_heads // config.num_key_value_heads
        most = config.num_attention_heads * config.head_dim
        sides = {"query": most, "key": most // group, "value": most // group, "o_proj.input": most}
        tensors |= {
            f"model.layers.{i}.self_attn.{side}": LocationInfo(width=wide, dtype=name)
            for i in range(depth)
            for side, wide in sides.items()
            if heads
        }
        tensors["lm_head.output"] = LocationInfo(width=config.vocab_size, dtype=name, tail_only=True)
        structure = ModelStructure(
            model=shape,
            architecture="",
            num_layers=depth,
            hidden_size=width,
            vocab_size=config.vocab_size,
            context_length=config.max_position_embeddings,
            dtype=name,
            device="cuda:0",
            num_parameters=0,
            chat_template=False,
            eos_token_ids=[],
            hooks={},
            module_locations=list(tensors),
            module_tensors=tensors,
        )
        tokenizer: Any = SimpleNamespace(eos_token_id=None, model_max_length=1 << 40)
        model = LoadedModel(name=shape, hf=hf, tokenizer=tokenizer)
        widths = {name: info.width for name, info in tensors.items()}
        yield ModelHooks(model, structure, {name: name for name in tensors}, frozenset(), widths), card()


def points(hooks: ModelHooks) -> tuple[str, ...]:
    """Two points of each layer."""
    return tuple(
        name
        for name, info in hooks.structure.module_tensors.items()
        if not info.tail_only and ".self_attn." not in name
    )


def head_points(hooks: ModelHooks) -> tuple[str, ...]:
    """Queries, keys, values and what the heads give, of each layer."""
    return tuple(name for name in hooks.structure.module_tensors if ".self_attn." in name)
