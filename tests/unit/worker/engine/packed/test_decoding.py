"""Decode passes of fixed shapes, as a CUDA graph replays them: here each call is made, on a CPU."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial, wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from actograph.contract.row_selection import TokenRange
from actograph.contract.saes import NewSae
from storage.saes import sae_files
from tests.support.lazy_copies import as_on_a_gpu as blocks_as_on_a_gpu
from tests.support.saes import write_sae
from tests.support.stream_run import StreamRun, ask, plan_of, prompts, stream_model
from tests.support.varlen import varlen
from worker.engine.capture.budget import Budget, DeviceMemory
from worker.engine.capture.directions import Directions
from worker.engine.capture.encoders import Encoder
from worker.engine.capture.layouts import layouts_of
from worker.engine.capture.pool import Pool
from worker.engine.edit_tables import EditTables, Stage
from worker.engine.locations import ModelHooks
from worker.engine.messages import Capture, Edit, Encoding, Readout, ReadoutLimit, Request, StatisticsOptions
from worker.engine.packed import attention, decoding
from worker.engine.packed.decoding import FixedPass, Replays, _Graph
from worker.engine.packed.forward import PackedForward
from worker.engine.pass_hooks import PassHooks
from worker.engine.slot import Slot
from worker.engine.stream.slots import blocks_of
from worker.engine.tokens.sampler import SamplerEntry

#: calls whose result or shape depends on values
_DATA_DEPENDENT = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "repeat_interleave")


class Recorder(TorchDispatchMode):
    """Writes down each call with the shapes and types of its tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[object, ...]] = []
        self.paused = False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not self.paused:
            told = [(x.shape, x.stride(), x.dtype) if isinstance(x, Tensor) else type(x) for x in args]
            self.calls.append((str(func), *told))
        return func(*args, **kwargs or {})


class EveryCall:
    """Has the interface of `Replays`, and makes the calls that a graph would."""

    def __init__(self, forward: PackedForward, *, most: int) -> None:
        model, self._forward = forward.hooks.model, forward
        self._fixed = FixedPass(
            forward.logits,
            forward.arena,
            forward.next_ids,
            model.device,
            most=most,
            context=model.context_length,
        )
        self.passes: list[tuple[int, int, tuple[object, ...], Recorder]] = []

    def takes(self, slots: Sequence[Slot]) -> bool:
        return self._fixed.takes(slots)

    def run(self, slots: Sequence[Slot], at_hooks: PassHooks) -> Tensor:
        rows = self._fixed.bucket(slots)
        at_hooks.begin(slots, padded=rows)
        self._fixed.fill(slots, rows)
        self._forward.hook(at_hooks)
        recorder = Recorder()
        _now[:] = [recorder]
        with recorder:
            logits = self._fixed.forward(rows)
        _now.clear()
        self.passes.append((len(slots), rows, at_hooks.memory, recorder))
        return logits[: len(slots)]

    def prepare(self, at_hooks: PassHooks, hook: Callable[[PassHooks], None]) -> None:
        """It holds no graphs."""


#: the recorder of the pass that runs; one pass runs at a time
_now: list[Recorder] = []


@wraps(varlen)
def _unrecorded(*args: Any, **kwargs: Any) -> Tensor:
    """The GPU's one call; what its stand-in does is not the pass's."""
    for recorder in _now:
        recorder.paused = True
    try:
        return varlen(*args, **kwargs)
    finally:
        for recorder in _now:
            recorder.paused = False


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "varlen_attn", _unrecorded)
    monkeypatch.setattr(attention, "can_fuse", lambda *_: True)
    monkeypatch.setattr(decoding, "_driver_bytes", lambda _: 0)


def _requests(hooks: ModelHooks) -> list[Request]:
    """Requests that differ in one thing each."""
    given = prompts((21, 3, 40, 9, 12, 5, 30), vocabulary=500)
    edit = Edit(hook="resid_post.0", op="scale", coefficient=0.5)
    every, logits = plan_of(hooks), plan_of(hooks, positions="last")
    return [
        ask("all", given[0], 14, capture=every),
        ask("short", given[1], 2, capture=every),
        ask("answer", given[2], 9, capture=plan_of(hooks, positions="generated")),
        ask("free", given[3], 12),
        ask("some", given[4], 11, capture=plan_of(hooks, columns=(3, 1))),
        ask("edited", given[5], 4, capture=every, edits=(edit,)),
        ask("last", given[6], 7, capture=logits),
    ]


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize(("name", "late"), [("llama", False), ("llama", True), ("tiny-qwen3", True)])
def test_fixed_passes_give_the_tokens_and_rows_of_others(shared: Path, name: str, late: bool) -> None:
    hooks = stream_model(shared, name)
    if name == "tiny-qwen3":
        hooks.model.hf.generation_config.eos_token_id = None
    made: list[EveryCall] = []

    def fixed(forward: PackedForward) -> None:
        made.append(EveryCall(forward, most=6))
        forward.decoding = made[-1]  # type: ignore[assignment]

    items = _requests(hooks)
    plain = StreamRun(items).run(hooks, most=6)
    run = StreamRun(items).run(hooks, most=6, prepare=fixed, late=late)
    (called,) = made
    assert {(live, rows) for live, rows, *_ in called.passes} >= {(1, 1), (2, 2), (3, 4)}
    for item in items:
        assert run.made[item.key].error is None
        assert run.ids(item.key) == plain.ids(item.key)
        for hook in item.capture.hooks if item.capture is not None else ():
            assert run.tokens(item.key, hook) == plain.tokens(item.key, hook)
            got, due = run.rows(item.key, hook), plain.rows(item.key, hook)
            torch.testing.assert_close(got, due, atol=1e-4, rtol=1e-4)


@pytest.mark.usefixtures("as_on_a_gpu")
def test_passes_with_the_same_copies_make_the_same_calls(shared: Path) -> None:
    hooks = stream_model(shared, "llama")
    made: list[EveryCall] = []

    def fixed(forward: PackedForward) -> None:
        made.append(EveryCall(forward, most=6))
        forward.decoding = made[-1]  # type: ignore[assignment]

    items = [ask(f"r{n}", prompt, 9, capture=plan_of(hooks)) for n, prompt in enumerate(prompts((21, 3, 40)))]
    StreamRun(items).run(hooks, most=3, prepare=fixed)
    alike: dict[tuple[object, ...], list[Recorder]] = {}
    for _, rows, copies, recorder in made[0].passes[1:]:  # the first one makes the tensor of logits
        alike.setdefault((rows, copies), []).append(recorder)
    repeated = [recorders for recorders in alike.values() if len(recorders) > 1]
    assert repeated, "no two passes had the same shape and copies"
    for first, *others in repeated:
        assert len(first.calls) > 20
        assert all(other.calls == first.calls for other in others)
        assert not [call for call, *_ in first.calls if any(name in str(call) for name in _DATA_DEPENDENT)]


def test_the_numbers_of_a_pass_stay_until_the_one_after_the_next_is_filled_in(shared: Path) -> None:
    """The copy to the device may still read them: the host waits for the pass before the last one alone."""
    hooks = stream_model(shared, "llama")
    forward = PackedForward(hooks, Budget(1 << 24), tokens=200)
    made = EveryCall(forward, most=2)._fixed
    slots = []
    for number in range(2):
        slot = Slot(ask(str(number), (5, 6, 7), 9), generated=[9])
        slot.computed, slot.chosen, slot.sampler = 3, 1, SamplerEntry(number)
        assert forward.place(slot)
        slot.run_to(4)
        slots.append(slot)
    before: list[tuple[Tensor, Tensor]] = []
    for some in (slots[:1], slots, slots[1:]):
        made.fill(some, 2)
        now = made._hosts[0]
        assert all(now is not host and torch.equal(host, numbers) for host, numbers in before[-1:])
        before.append((now, now.clone()))


class Called(Replays):
    """Makes the calls of a graph's pass where the graph would be replayed."""

    def __init__(self, forward: PackedForward, *, most: int) -> None:
        model, self._forward = forward.hooks.model, forward
        fixed = FixedPass(
            forward.logits,
            forward.arena,
            forward.next_ids,
            model.device,
            most=most,
            context=model.context_length,
        )
        super().__init__(fixed, model.device)
        self.captured, self.replayed, self.without = list[int](), 0, 0

    def run(self, slots: Sequence[Slot], at_hooks: PassHooks) -> Tensor | None:
        logits = super().run(slots, at_hooks)
        self.without += logits is None
        return logits

    def _capture(self, rows: int, at_hooks: PassHooks) -> _Graph:
        self.captured.append(rows)

        def replay() -> None:
            self.replayed += 1
            self._forward.hook(at_hooks)
            self._fixed.forward(rows)

        return _Graph(SimpleNamespace(replay=replay), self._fixed.forward(rows), at_hooks.copies)


@pytest.mark.usefixtures("as_on_a_gpu")
def test_graphs_are_captured_as_captures_open_and_by_no_pass(shared: Path) -> None:
    """Requests of three captures come and go; passes with edits run eagerly."""
    hooks, made = stream_model(shared, "llama"), list[Called]()

    def replays(forward: PackedForward) -> None:
        made.append(Called(forward, most=6))
        forward.decoding = made[-1]

    every, one = plan_of(hooks), Capture(hooks=("resid_post.1",))
    items = [
        ask(f"r{i}", prompt, 12, capture=(every, one, None, Capture(hooks=("embed",), columns=3))[i % 4])
        for i, prompt in enumerate(prompts((21, 3, 40, 9, 12, 5, 30, 7), vocabulary=500))
    ]
    edit = Edit(hook="resid_post.0", op="scale", coefficient=0.5)
    items.append(ask("edited", (5, 6, 7), 3, edits=(edit,), capture=one))
    arrivals = {f"r{i}": 3 * i for i in range(8)} | {"edited": 9}
    for late in (False, True):
        plain = StreamRun(items, arrivals).run(hooks, most=6)
        run = StreamRun(items, arrivals).run(hooks, most=6, prepare=replays, late=late)
        decoding = made[-1]
        assert decoding.captured == [6, 4, 2, 1] * (len(decoding.captured) // 4)
        assert 4 <= len(decoding.captured) <= 5 * 4, "for none, and as each of three opens"
        assert decoding.replayed > 20
        for item in items:
            assert run.made[item.key].error is None and run.ids(item.key) == plain.ids(item.key)
            for hook in item.capture.hooks if item.capture is not None else ():
                assert run.tokens(item.key, hook) == plain.tokens(item.key, hook)
                got, due = run.rows(item.key, hook), plain.rows(item.key, hook)
                torch.testing.assert_close(got, due, atol=1e-4, rtol=1e-4)


def _computing(hooks: ModelHooks, folder: Path) -> list[Capture]:
    """Captures with latents, with readouts of two places, and with both beside rows."""
    width = hooks.width_of("resid_post.0")
    encodings = []
    for architecture in ("standard", "topk", "gated"):
        write_sae(folder / architecture, architecture, d_in=width)
        sae = sae_files.read(NewSae(name=architecture, path=architecture), [str(folder)])
        more: dict[str, Any] = {"config": sae.config, "sha256": architecture, "path": str(sae.weights)}
        encodings.append(Encoding(name=f"sae:{architecture}", hook="resid_post.0", top=6, **more))
    readouts = []
    for number, hook in enumerate(("resid_post.0", "mlp_in.1", "resid_post.0")):
        vector = np.random.default_rng(number).standard_normal(width).astype(np.float32)
        readouts.append(Readout(name=f"readout:{number}", hook=hook, sha256=str(number), vector=vector))
    return [
        Capture(hooks=(), encodings=tuple(encodings[:2])),
        Capture(hooks=(), readouts=tuple(readouts)),
        Capture(hooks=("resid_post.0",), encodings=tuple(encodings[2:]), readouts=tuple(readouts[:1])),
    ]


@pytest.mark.usefixtures("as_on_a_gpu")
def test_latents_and_readouts_are_computed_in_replayed_passes(shared: Path, tmp_path: Path) -> None:
    """SAEs and directions leave with their last request and come back; the other passes go on replayed."""
    hooks, made = stream_model(shared, "llama"), list[Called]()

    def replays(forward: PackedForward) -> None:
        made.append(Called(forward, most=6))
        forward.decoding = made[-1]

    captures = _computing(hooks, tmp_path)
    given = prompts((21, 3, 40, 9, 12, 5, 30, 7), vocabulary=500)
    items = [
        ask(f"r{i}", prompt, 9 + i, capture=(*captures, plan_of(hooks))[i % 4])
        for i, prompt in enumerate(given)
    ]
    limit = ReadoutLimit(name="readout:0", above=1e9)  # which no value crosses
    items.append(ask("limit", (5, 6, 7), 8, capture=captures[1], stops=(limit,)))
    arrivals = {f"r{i}": 4 * i for i in range(8)} | {"limit": 12}
    for late in (False, True):
        plain = StreamRun(items, arrivals).run(hooks, most=6)
        run = StreamRun(items, arrivals).run(hooks, most=6, prepare=replays, late=late)
        assert not run.errors
        assert made[-1].replayed > 30 and made[-1].without == 0
        for item in items:
            assert run.ids(item.key) == plain.ids(item.key)
            assert run.chunks[item.key].keys() == plain.chunks[item.key].keys()
            for hook in plain.chunks[item.key]:
                assert run.tokens(item.key, hook) == plain.tokens(item.key, hook)
                got, due = run.rows(item.key, hook), plain.rows(item.key, hook)
                torch.testing.assert_close(got, due, atol=1e-4, rtol=1e-4)


def test_an_eager_pass_of_single_tokens_encodes_the_rows_of_those_that_ask(
    shared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks = stream_model(shared, "llama")
    with_sae, with_readouts, _ = _computing(hooks, tmp_path)
    plain = StreamRun([ask("sae", (5, 6, 7), 9, capture=with_sae)]).run(hooks)
    blocks_as_on_a_gpu(monkeypatch)
    sizes: dict[str, set[int]] = {"latents": set(), "readouts": set()}
    top, values = Encoder.top, Directions.values

    def watched_top(encoder: Encoder, rows: Tensor, count: int, **of: Any) -> Any:
        sizes["latents"].add(len(rows))
        return top(encoder, rows, count, **of)

    def watched_values(directions: Directions, location: str, rows: Tensor) -> Any:
        sizes["readouts"].add(len(rows))
        return values(directions, location, rows)

    monkeypatch.setattr(Encoder, "top", watched_top)
    monkeypatch.setattr(Directions, "values", watched_values)
    items = [ask(f"r{i}", (8, 9, 10), 9, capture=plan_of(hooks)) for i in range(3)]
    items += [ask("sae", (5, 6, 7), 9, capture=with_sae), ask("readout", (5, 6, 7), 9, capture=with_readouts)]
    run = StreamRun(items).run(hooks)
    assert not run.errors
    assert sizes == {"latents": {3, 1}, "readouts": {3, 1}}, "of its prompt, and of each token"
    for name in plain.chunks["sae"]:
        torch.testing.assert_close(run.rows("sae", name), plain.rows("sae", name), atol=1e-4, rtol=1e-4)


@pytest.mark.usefixtures("as_on_a_gpu")
def test_graphs_serve_later_runs_as_long_as_their_blocks_lie_where_they_did(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs with two captures in turns, of which the pool has room for both or for one."""
    hooks = stream_model(shared, "llama")
    blocks_as_on_a_gpu(monkeypatch)
    device, most = hooks.model.device, 3
    two, one = (Capture(hooks=chosen) for chosen in (("attn_in.0", "mlp_in.1"), ("resid_post.1",)))
    captures = {"two": two, "one": one, "none": None}
    statistics = Capture(hooks=("resid_post.0",), reduce="mean", statistics=StatisticsOptions(threshold=0.1))
    (layout,) = layouts_of(hooks, two)
    given = prompts((21, 3, 40))
    for room in (64 * layout.block_bytes, 8 * layout.block_bytes):
        forward = PackedForward(hooks, Budget(1 << 24), tokens=400)
        forward.decoding = decoding = Called(forward, most=most)
        memory = DeviceMemory(device, room)
        pool = Pool(device, memory, Budget(1 << 30), blocks=blocks_of(most, 64))
        at_hooks = PassHooks(hooks, pool, padded=most)
        known = set[tuple[str, bool]]()
        for number, name in enumerate(("none", "two", "one", "none", "two", "one", "two", "one")):
            items = [ask(f"{i}", prompt, 9, capture=captures[name]) for i, prompt in enumerate(given)]
            sums = number in {2, 5}
            items += [ask("sums", (5, 6, 7), 3, capture=statistics)] if sums else []
            plain = StreamRun(items).run(hooks, most=most, urgent=0)
            decoding.captured.clear()
            run = StreamRun(items)
            run.run_on(forward, pool.host, at_hooks=at_hooks, most=most, urgent=0, late=number > 3)
            assert not run.errors and pool.idle
            pieces = [region.piece.taken for region in pool._regions.values() if region.piece is not None]
            assert memory.used == sum(pieces), "sums went back"
            assert not decoding.captured or (name, sums) not in known, "a run of the same captures finds them"
            known.add((name, sums))
            for item in items:
                assert run.ids(item.key) == plain.ids(item.key)
                for hook in plain.chunks.get(item.key, {}):
                    got, due = run.rows(item.key, hook), plain.rows(item.key, hook)
                    torch.testing.assert_close(got, due, atol=1e-4, rtol=1e-4, equal_nan=True)
        assert (layout in pool._regions) == (room > 8 * layout.block_bytes), "the other one took its place"


class _CallingGraph:
    """A graph whose replay makes the calls of the pass again."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], object]] = []

    def replay(self) -> None:
        for call in self.calls:
            call()


class CudaGraphs:
    """CUDA graphs on a CPU: the real `Replays`, whose graphs call the forward of fixed shape.

    Attributes:
        captured: rows of the graphs.
        replayed: number of replays.
        graph_bytes: of each graph.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.captured, self.replayed = list[int](), 0
        self.graph_bytes = 0
        capturing: list[_CallingGraph] = []
        forward = FixedPass.forward

        def watched(fixed: FixedPass, rows: int) -> Tensor:
            for graph in capturing:
                self.captured.append(rows)
                graph.calls.append(partial(replayed, fixed, rows))
            return forward(fixed, rows)

        def replayed(fixed: FixedPass, rows: int) -> None:
            self.replayed += 1
            forward(fixed, rows)

        @contextmanager
        def capture(graph: _CallingGraph, **_: Any) -> Iterator[None]:
            capturing.append(graph)
            yield
            capturing.clear()

        stream = SimpleNamespace(wait_stream=lambda _: None)
        fake: Any = SimpleNamespace(
            Stream=lambda _: stream,
            current_stream=lambda _: stream,
            stream=lambda _: nullcontext(),
            graph=capture,
            CUDAGraph=_CallingGraph,
            graph_pool_handle=lambda: 1,
            synchronize=lambda _: None,
        )
        patch.setattr(FixedPass, "forward", watched)
        patch.setattr(torch, "cuda", fake)
        patch.setattr(decoding, "_driver_bytes", lambda _: -len(self.captured) * self.graph_bytes)


def _kept(hooks: ModelHooks, most: int) -> tuple[PackedForward, PassHooks]:
    """A forward that replays, and the hooks of its model, which serve several runs."""
    device = hooks.model.device
    forward = PackedForward(hooks, Budget(1 << 26), tokens=4000)
    context = hooks.model.context_length
    fixed = FixedPass(forward.logits, forward.arena, forward.next_ids, device, most=most, context=context)
    forward.decoding = Replays(fixed, device)
    hooked = forward.decoding.run

    def with_hooks(slots: Sequence[Slot], at_hooks: PassHooks) -> Tensor | None:
        at_hooks.begin(slots, padded=fixed.bucket(slots))
        forward.hook(at_hooks)  # a graph has them inside
        return hooked(slots, at_hooks)

    forward.decoding.run = with_hooks  # type: ignore[method-assign]
    pool = Pool(device, DeviceMemory(device, 1 << 26), Budget(1 << 30), blocks=blocks_of(most, 64))
    return forward, PassHooks(hooks, pool, padded=most, tables=EditTables(hooks, most))


def _steered(hooks: ModelHooks, capture: Capture | None, seed: int) -> list[Request]:
    """Requests with edits of every operation and of one and several places, and without."""
    draw = np.random.default_rng(seed)

    def edit(hook: str, op: Any, **more: Any) -> Edit:
        vector = draw.normal(size=hooks.width_of(hook)).astype(np.float32)
        given: dict[str, Any] = {"vector": None if op in ("zero", "scale") else vector}
        return Edit(hook=hook, op=op, coefficient=float(draw.uniform(0.2, 0.9)), **given, **more)

    edits: dict[str, tuple[Edit, ...]] = {
        "add": (edit("resid_post.0", "add"), edit("resid_post.0", "add_row_norm")),
        "scaled at two": (edit("resid_post.0", "scale"), edit("mlp_out.1", "scale", positions="generated")),
        "projected, then added": (edit("resid_post.0", "project_out"), edit("resid_post.0", "add")),
        "first tokens": (edit("mlp_out.1", "replace", positions=TokenRange(start=2, stop=16)),),
        "zero": (edit("attn_out.1", "zero", positions="prompt"),),
        "the last": (edit("resid_post.1", "add", positions="last"),),
        "none": (),
    }
    given = prompts((21, 3, 9, 12, 5, 30, 7), seed=seed, vocabulary=500)
    return [
        ask(name, prompt, 9, capture=capture if i % 3 else None, edits=own)
        for i, (prompt, (name, own)) in enumerate(zip(given, edits.items(), strict=True))
    ]


@pytest.mark.usefixtures("as_on_a_gpu")
def test_passes_with_edits_are_replayed_and_other_vectors_need_no_other_graph(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks = stream_model(shared, "llama")
    blocks_as_on_a_gpu(monkeypatch)
    graphs = CudaGraphs(monkeypatch)
    forward, at_hooks = _kept(hooks, most=7)
    every = Capture(hooks=("resid_post.0", "mlp_in.1", "resid_post.1"))
    for number in range(4):
        items = _steered(hooks, every, seed=number)
        plain = StreamRun(items).run(hooks, most=7)
        graphs.captured.clear()
        graphs.replayed = 0
        run, late = StreamRun(items), number % 2 == 1
        run.run_on(forward, at_hooks.pool.host, at_hooks=at_hooks, most=7, urgent=0, late=late, apart=True)
        assert not run.errors and at_hooks.pool.idle
        # without captures, and with those of this run
        assert set(graphs.captured) == ({1, 2, 4, 7} if not number else set())
        decoding = run.statistics.passes - 1
        assert graphs.replayed >= decoding - late
        for item in items:
            assert run.ids(item.key) == plain.ids(item.key), item.key
            for hook in plain.chunks.get(item.key, {}):
                assert run.tokens(item.key, hook) == plain.tokens(item.key, hook)
                got, due = run.rows(item.key, hook), plain.rows(item.key, hook)
                torch.testing.assert_close(got, due, atol=1e-4, rtol=1e-4, msg=f"{item.key}: {hook}")


@pytest.mark.usefixtures("as_on_a_gpu")
def test_edits_that_a_graph_makes_otherwise_mean_eager_passes(
    shared: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The proof at capture finds a wrong table, a wrong kind and a change that is left out."""
    hooks = stream_model(shared, "llama")
    blocks_as_on_a_gpu(monkeypatch)
    graphs = CudaGraphs(monkeypatch)
    real = EditTables.change

    def half(self: EditTables, stage: Stage, rows: Tensor) -> None:
        before = rows.clone()
        real(self, stage, rows)
        rows.copy_((rows + before) / 2)

    for wrong in (half, lambda *_: None):
        items = _steered(hooks, None, seed=1)
        plain = StreamRun(items).run(hooks, most=7)
        forward, at_hooks = _kept(hooks, most=7)
        caplog.clear()
        graphs.replayed = 0
        with monkeypatch.context() as own:
            own.setattr(EditTables, "change", wrong)
            run = StreamRun(items)
            run.run_on(forward, at_hooks.pool.host, at_hooks=at_hooks, most=7, urgent=0, apart=True)
        assert "decode passes with these captures and edits are not replayed" in caplog.text
        assert "gives other numbers" in caplog.text
        for item in items:
            assert run.made[item.key].error is None and run.ids(item.key) == plain.ids(item.key)
        # a run without them replays as before
        graphs.replayed = 0
        free = StreamRun([ask("free", (5, 6, 7), 9)])
        free.run_on(forward, at_hooks.pool.host, at_hooks=at_hooks, most=7, urgent=0, apart=True)
        assert graphs.replayed >= 8 and not free.errors


@pytest.mark.usefixtures("as_on_a_gpu")
def test_as_many_sets_of_graphs_are_kept_as_the_device_has_spare_memory_for(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks = stream_model(shared, "llama")
    blocks_as_on_a_gpu(monkeypatch)
    graphs = CudaGraphs(monkeypatch)
    plans = [Capture(hooks=(f"{point}.0",)) for point in ("resid_pre", "resid_mid", "resid_post", "mlp_out")]
    # four graphs of a set take 4, 160 and 600 MB
    for megabytes, kept in ((1, 4), (40, 2), (150, 1)):
        graphs.graph_bytes = megabytes << 20
        forward, at_hooks = _kept(hooks, most=7)

        def captured(plan: Capture, forward: PackedForward = forward, at_hooks: PassHooks = at_hooks) -> int:
            graphs.captured.clear()
            run = StreamRun([ask("a", (5, 6, 7), 3, capture=plan)])
            run.run_on(forward, at_hooks.pool.host, at_hooks=at_hooks, most=7, urgent=0, apart=True)
            assert not run.errors
            return len(set(graphs.captured))

        assert [captured(plan) for plan in plans] == [4, 4, 4, 4]
        assert [captured(plan) for plan in plans[::-1]] == [0] * kept + [4] * (4 - kept)
