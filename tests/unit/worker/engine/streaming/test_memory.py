"""Memory of slots and of places for rows is bounded by what was planned."""

import pytest
import torch

from tests.support.streaming_runs import Pair
from worker.engine.model import memory
from worker.engine.requests import BufferOptions
from worker.engine.runs import CapturePlan
from worker.engine.streaming.capture.lane import Lane
from worker.engine.streaming.slots import Slots, shapes_of

#: keys and values of one token of the small Llama: 3 layers, 2 heads of 8, float32
TOKEN_BYTES = 3 * 2 * 2 * 8 * 4


def slots_of(pair: Pair, monkeypatch: pytest.MonkeyPatch, free: int, most: int = 0) -> Slots:
    monkeypatch.setattr(memory, "available_bytes", lambda _: free)
    shapes = shapes_of(pair.traced.model)
    assert shapes is not None
    return Slots(pair.traced.model, shapes, most=most)


def held(slots: Slots) -> int:
    return sum(tensor.nbytes for tensor in (*slots.cache.keys, *slots.cache.values))


@pytest.mark.parametrize(("need", "count"), [(10, 20), (64, 20), (65, 10), (129, 6), (600, 2), (5000, 1)])
def test_slots_are_as_many_as_half_of_the_free_memory_holds(
    need: int, count: int, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    slots = slots_of(pair, monkeypatch, free=2 * 20 * 64 * TOKEN_BYTES)
    assert slots.cache.token_bytes == TOKEN_BYTES
    with torch.inference_mode():
        assert slots.fit(need, [])
    assert slots.free == slots.cache.slots == count
    assert slots.cache.capacity >= need
    assert count == 1 or held(slots) <= 20 * 64 * TOKEN_BYTES


def test_slots_are_no_more_than_asked_for(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    slots = slots_of(pair, monkeypatch, free=1 << 40, most=5)
    with torch.inference_mode():
        assert slots.fit(100, [])
    assert slots.free == 5


def test_slots_that_are_given_up_take_no_memory(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    slots = slots_of(pair, monkeypatch, free=1 << 40, most=8)
    with torch.inference_mode():
        slots.fit(100, [])
        slots.shrink(4)
        assert held(slots) == 0
        assert slots.fit(100, []) and slots.free == 4


@pytest.mark.parametrize("positions", ["all", "generated", "last"])
@pytest.mark.parametrize("tokens", [100, 256, 2048])
def test_places_take_no_more_than_the_buffer_however_long_texts_are(
    tokens: int, positions: str, pair: Pair
) -> None:
    plan = CapturePlan(hooks=pair.hooks, positions=positions)  # type: ignore[arg-type]
    options = BufferOptions(host_buffer_bytes=1 << 20)
    lane = Lane(pair.traced.hooks, plan, requests=8, tokens=tokens, options=options)
    try:
        assert 0 < sum(group.rows.nbytes for group in lane.buffers.groups) <= 1 << 20
        assert lane.buffers.free == 10
    finally:
        lane.close()


def test_a_place_is_no_larger_than_a_shard(pair: Pair) -> None:
    plan = CapturePlan(hooks=("resid_post.0",))
    options = BufferOptions(shard_bytes=10 * 32 * 4)
    lane = Lane(pair.traced.hooks, plan, requests=2, tokens=500, options=options)
    lane.close()
    assert lane.buffers.size == 10
