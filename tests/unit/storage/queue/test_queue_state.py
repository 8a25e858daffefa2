"""The queue is paused exactly while the disk has less free than the floor."""

import pytest

from actograph.contract.errors import StorageFull
from storage.queue.pause import disk_pause, require_room, writable_bytes


class Disk:
    def __init__(self, free: int | OSError | None) -> None:
        self._free = free

    def free_bytes(self) -> int | None:
        if isinstance(self._free, OSError):
            raise self._free
        return self._free


def test_it_pauses_below_the_floor_alone(subtests: pytest.Subtests) -> None:
    for free, floor, paused in [
        (99, 100, True),
        (100, 100, False),
        (0, 0, False),
        (None, 100, False),
        (FileNotFoundError("gone"), 100, False),
    ]:
        with subtests.test(free=free, floor=floor, paused=paused):
            reason = disk_pause(Disk(free), floor)  # type: ignore[arg-type]
            assert (reason is not None) == paused
            if reason is not None:
                assert "99 bytes free" in reason
                assert "floor of 100" in reason


def test_what_may_be_written_ends_at_the_floor() -> None:
    for free, writable in ((150, 50), (100, 0), (50, 0), (None, None)):
        assert writable_bytes(Disk(free), 100) == writable  # type: ignore[arg-type]


def test_room_is_required_above_the_floor() -> None:
    require_room(Disk(100), 90, 10)  # type: ignore[arg-type]
    require_room(Disk(None), 90, 10)  # type: ignore[arg-type]
    require_room(Disk(5), 0, 10)  # type: ignore[arg-type]
    with pytest.raises(StorageFull, match=r"11 bytes more would not fit above the floor of 90 .* delete"):
        require_room(Disk(100), 90, 11)  # type: ignore[arg-type]
    with pytest.raises(StorageFull, match="more would not fit"):
        require_room(Disk(89), 90)  # type: ignore[arg-type]
