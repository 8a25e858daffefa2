"""Places for long requests: who waits, for how long, and that no place is ever lost."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

import api.app  # noqa: F401 (declares the routes)
from actograph.contract.errors import ServiceBusy
from api.requests import lanes
from api.requests.lanes import SIZES, Lane, Size
from api.routing import RULES

#: threads that anyio gives to requests
THREADS = 40
SMALL = Size(places=3, of_owner=2, waiting=2)


def run(test: Callable[[Lane], Awaitable[None]], size: Size = SMALL) -> None:
    async def main() -> None:
        lane = Lane("reads", size)
        await test(lane)
        # every place is free again
        for owner in ("x", "y"):
            await asyncio.wait_for(lane.enter(owner), 1)
            lane.leave(owner)

    asyncio.run(main())


async def waiting(lane: Lane, owner: str) -> "asyncio.Task[None]":
    task = asyncio.create_task(lane.enter(owner))
    await asyncio.sleep(0)
    assert not task.done()
    return task


def test_an_owner_has_a_part_of_the_places() -> None:
    async def test(lane: Lane) -> None:
        await lane.enter("a")
        await lane.enter("a")
        third = await waiting(lane, "a")
        await lane.enter("b")  # passes the one that waits
        lane.leave("a")
        await third
        for owner in ("a", "a", "b"):
            lane.leave(owner)

    run(test)


def test_who_waits_longest_is_next_among_those_that_may() -> None:
    async def test(lane: Lane) -> None:
        for owner in ("a", "a", "b"):
            await lane.enter(owner)
        of_a, of_c = await waiting(lane, "a"), await waiting(lane, "c")
        lane.leave("b")
        await of_c
        assert not of_a.done()
        lane.leave("a")
        await of_a
        for owner in ("a", "a", "c"):
            lane.leave(owner)

    run(test)


def test_too_many_that_wait_are_refused_at_once() -> None:
    async def test(lane: Lane) -> None:
        await lane.enter("a")
        await lane.enter("a")
        first, second = await waiting(lane, "a"), await waiting(lane, "a")
        with pytest.raises(ServiceBusy) as caught:
            await lane.enter("a")
        assert int(caught.value.headers["Retry-After"]) >= 1
        for task in (first, second):
            lane.leave("a")
            await task
        lane.leave("a")
        lane.leave("a")

    run(test)


def test_waiting_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "WAIT_SECONDS", 0.05)

    async def test(lane: Lane) -> None:
        await lane.enter("a")
        await lane.enter("a")
        with pytest.raises(ServiceBusy, match="2 requests of the kind reads"):
            await lane.enter("a")
        lane.leave("a")
        lane.leave("a")

    run(test)


def test_who_goes_away_takes_no_place_along() -> None:
    async def test(lane: Lane) -> None:
        await lane.enter("a")
        await lane.enter("a")
        early, late = await waiting(lane, "a"), await waiting(lane, "a")
        early.cancel()
        lane.leave("a")  # to `late`, which is cancelled in the same moment
        late.cancel()
        await asyncio.gather(early, late, return_exceptions=True)
        assert late.cancelled()
        lane.leave("a")

    run(test)


def test_the_lanes_leave_threads_to_cheap_requests() -> None:
    assert sum(size.places for size in SIZES.values()) <= THREADS - 10
    assert all(size.of_owner < size.places for size in SIZES.values())


def test_every_route_that_writes_has_a_lane() -> None:
    without = {
        route for route, rule in RULES.items() if rule.lane not in SIZES and route[0] not in ("GET", "HEAD")
    }
    # chats and model loads, which may be waited for, have threads of their own
    own = ("/v1/chat/completions", "/v1/completions", "/v1/models/load", "/models/load")
    assert without == {("POST", path) for path in own}
    assert {path for (_, path), rule in RULES.items() if rule.lane == "exports"} == {
        "/v1/jobs/{job_id}/export"
    }
