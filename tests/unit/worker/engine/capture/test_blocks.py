"""Blocks of rows: whatever runs beside a request or fails, its rows are those that it has alone."""

import gc
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from actograph.contract.row_selection import Positions, Stride, TokenRange
from tests.support.lazy_copies import LazyCopies, as_on_a_gpu
from tests.support.stream_run import StreamRun, ask, prompts, stream_model
from worker.engine.capture.budget import Budget
from worker.engine.capture.layouts import BLOCK, layouts_of
from worker.engine.capture.pool import Pool
from worker.engine.locations import ModelHooks
from worker.engine.messages import Capture, Edit, Request, StatisticsOptions

HOOKS = ("embed", "resid_post.0", "mlp_in.0", "resid_post.1", "attn_out.1", "logits")
POSITIONS: Sequence[Positions] = (
    "all",
    "prompt",
    "generated",
    "last",
    "last_prompt",
    Stride(stride=3),
    TokenRange(start=2, stop=70),
    [-1, 3],
)
STATISTICS = StatisticsOptions(threshold=0.1)


SHAPINGS: Sequence[dict[str, Any]] = (
    {},
    {},
    {"columns": 5},
    {"columns": (7, 0, 3)},
    {"columns": (2, 9)},
    {"reduce": "mean"},
    {"reduce": "max"},
    {"reduce": "last"},
    {"statistics": STATISTICS},
    {"statistics": StatisticsOptions(rows=False), "columns": 4},
    {"reduce": "mean", "statistics": STATISTICS},
)


def _mixed(seed: int, count: int = 9) -> list[Request]:
    """Requests that differ in all that concerns rows; some prompts begin alike."""
    draw = random.Random(seed)
    (head,) = prompts((130,), seed=seed)
    vector = np.linspace(-1, 1, 32, dtype=np.float32)
    items = []
    for i in range(count):
        (own,) = prompts((draw.choice((1, 5, 40, 64, 129)),), seed=100 * seed + i)
        hooks = tuple(sorted(draw.sample(HOOKS, draw.randint(1, 4))))
        keep, dtype = draw.choice(POSITIONS), draw.choice(("model", "model", "float16", "float8_e4m3fn"))
        plan = Capture(hooks=hooks, dtype=dtype, **draw.choice(SHAPINGS))
        shares = draw.random() < 0.4
        if shares:
            plan, keep = Capture(hooks=HOOKS[:4]), draw.choice(("all", "generated"))
        edits = (Edit(hook="resid_post.0", op="add", vector=vector),) if draw.random() < 0.3 else ()
        most = draw.choice((0, 1, 3, 9, 70))
        items.append(
            ask(
                f"r{i}",
                head + own if shares else own,
                most,
                capture=plan if draw.random() < 0.9 else None,
                keep=keep,
                edits=edits,
            )
        )
    return items


@contextmanager
def _failing(hooks: ModelHooks, seed: int) -> Iterator[list[int]]:
    """Some passes run out of memory in the middle, when half of their rows are written.

    Yields the passes that got so far, and those that failed.
    """
    draw, passes = random.Random(seed), [0, 0]
    hf: Any = hooks.model.hf
    due = 3

    def maybe(*_: Any) -> None:
        nonlocal due
        passes[0] += 1
        if passes[0] == due:
            due += draw.randint(7, 15)  # a request that fails alone twice is given up
            passes[1] += 1
            raise torch.OutOfMemoryError("pretended")

    handle = hf.get_submodule(f"{hooks.model.layers_path}.1").register_forward_hook(maybe)
    try:
        yield passes
    finally:
        handle.remove()


def _check(hooks: ModelHooks, run: StreamRun, due: StreamRun, item: Request) -> None:
    key = item.key
    assert run.made[key].error is None and run.ids(key) == due.ids(key)
    assert run.chunks.get(key, {}).keys() == due.chunks.get(key, {}).keys()
    for hook in due.chunks.get(key, ()):
        assert run.tokens(key, hook) == due.tokens(key, hook), (key, hook)
        assert [c.over for c in run.chunks[key][hook]][-1:] == [c.over for c in due.chunks[key][hook]][-1:]
        got, want = run.rows(key, hook), due.rows(key, hook)
        assert got.dtype == want.dtype
        loose = 1e-2 if hook.endswith("kurtosis") or got.dtype == torch.float16 else 1e-4
        if item.capture is not None and item.capture.dtype == "float8_e4m3fn" and got.numel():
            loose = max(loose, float(want.abs().nan_to_num().max()) / 14)  # the next number of 8 bits
        if hook.endswith(".over"):  # a number beside the threshold may fall on either side
            assert (got - want).abs().max() <= 1
            continue
        torch.testing.assert_close(got, want, atol=loose, rtol=loose, equal_nan=True, msg=f"{key}: {hook}")


@pytest.mark.parametrize("where", ["CPU", "GPU"])
def test_rows_do_not_depend_on_what_else_runs_or_fails(
    shared: Path, where: str, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    hooks = stream_model(shared, "llama")
    monkeypatch.setattr(gc, "collect", lambda: 0)
    if where == "GPU":
        as_on_a_gpu(monkeypatch)
    before = LazyCopies.made
    for seed in range(4):
        items = _mixed(seed)
        alone = {item.key: StreamRun([item]).run(hooks) for item in items}
        with _failing(hooks, seed) as passes:
            run = StreamRun(items, {"r3": 2, "r5": 7}).run(
                hooks,
                most=4,
                step_tokens=48,
                shard_bytes=(1 << 20, 20_000)[seed % 2],
                late=seed > 1,
                apart=where == "GPU",
            )
        assert run.statistics.retries == passes[1] > 3
        for item in items:
            with subtests.test(seed=seed, key=item.key):
                _check(hooks, run, alone[item.key], item)
    assert (LazyCopies.made > before) == (where == "GPU")


def test_a_sum_over_rows_is_the_same_to_the_last_bit_in_any_company(shared: Path) -> None:
    """It is taken over whole blocks of the request's own rows, however its prompt was cut into chunks."""
    hooks = stream_model(shared, "llama")
    plan = Capture(
        hooks=("embed",),  # whose rows have no rounding of their own
        reduce="mean",
        statistics=STATISTICS,
    )
    long, *others = prompts((301, 70, 33, 5))
    alone = StreamRun([ask("long", long, 4, capture=plan)]).run(hooks, step_tokens=512)
    items = [ask("long", long, 4, capture=plan), *(ask(f"o{i}", p, 30) for i, p in enumerate(others))]
    run = StreamRun(items, {"long": 2}).run(hooks, step_tokens=40)
    assert run.ids("long") == alone.ids("long")
    for hook in alone.chunks["long"]:
        assert torch.equal(run.rows("long", hook), alone.rows("long", hook)), hook


def test_blocks_of_a_gpu_wait_for_room_and_leave_early(
    shared: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    """On device and host together there is room for a few blocks, of two layouts that take turns."""
    hooks = stream_model(shared, "llama")
    wide = Capture(hooks=("resid_post.0", "resid_post.1"))
    summed = Capture(hooks=("resid_post.1",), reduce="mean")
    items = [
        ask(f"r{i}", prompt, 70, capture=(wide, summed)[i % 3 == 2])
        for i, prompt in enumerate(prompts((90, 5, 140, 64, 70)))
    ]
    due = StreamRun(items).run(hooks)
    as_on_a_gpu(monkeypatch)
    block = layouts_of(hooks, wide)[0].block_bytes
    for blocks in (6, 9, 30):
        with subtests.test(blocks=blocks):
            run = StreamRun(items).run(hooks, rows=blocks * block)
            for item in items:
                _check(hooks, run, due, item)
            assert run.writes > len(items) or blocks == 30


def test_a_region_keeps_its_memory_while_it_is_in_use_and_gives_it_to_others_then(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks = stream_model(shared, "llama")
    as_on_a_gpu(monkeypatch)
    (one,) = layouts_of(hooks, Capture(hooks=("resid_post.0",)))
    (two,) = layouts_of(hooks, Capture(hooks=("resid_post.1",)))
    memory, host = Budget(8 * one.block_bytes), Budget(64 * one.block_bytes)
    pool = Pool(torch.device("cpu"), memory, host, blocks=5)
    first = pool.open(one)
    assert first is not None and first.blocks == 6, "a block for no one too"
    second = pool.open(two)
    assert second is not None and second.blocks == 2, "what is left"
    taken = [pool.take(second), pool.take(second)]
    assert [block is None for block in taken] == [False, True]
    pool.close(first)
    assert pool.open(one) is first, "until another layout needs it, it stays"
    pool.close(first)
    pool.close(second)
    assert pool.reserve(5 * one.block_bytes) and not pool.holds(first), "and goes to the one that needs it"
    assert pool.holds(second), "a block of it is out"
    pool.give([block for block in taken if block is not None])
    pool.clear()
    assert (memory.used, host.used) == (5 * one.block_bytes, 0)
    memory.give(5 * one.block_bytes)
    summed = pool.open(one, sums=one.block_bytes)
    assert summed is not None and summed.blocks == 3, "sums have room beside the blocks"


def test_blocks_of_a_cpu_count_when_they_are_used(shared: Path) -> None:
    hooks = stream_model(shared, "llama")
    (layout,) = layouts_of(hooks, Capture(hooks=("resid_post.0",)))
    (other,) = layouts_of(hooks, Capture(hooks=("resid_post.1",)))
    memory = Budget(3 * layout.block_bytes)
    pool = Pool(torch.device("cpu"), memory, memory)
    region, second = pool.open(layout), pool.open(other)
    assert region is not None and second is not None and memory.used == 0
    blocks = [block for _ in range(4) if (block := pool.take(region)) is not None]
    assert (len(blocks), memory.free) == (3, 0)
    assert pool.take(second) is None
    blocks[0].tokens = list(range(BLOCK))
    assert blocks[0].rows(0).shape == (1, BLOCK, 32)
    blocks[0].rows(0).fill_(7.0)
    pool.give(blocks[:1])
    assert pool.take(second) is not None, "a free block of another layout gives its memory"
    assert blocks[0].rows(0).eq(0).all(), "and it went back to the system"
