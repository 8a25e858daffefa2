"""Weights on a device that live requests share: each is made once."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

from worker.engine.capture.budget import Piece

T = TypeVar("T")


@dataclass(slots=True)
class _Held(Generic[T]):
    made: T
    memory: Piece
    users: int = 0


class OnDevice(Generic[T]):
    """Things on a device by their keys: each is made for its first user, and leaves with the last one.

    Args:
        reserve: takes bytes of the device; None if they do not fit.
        remove: gives them back.
    """

    def __init__(self, reserve: Callable[[int], Piece | None], remove: Callable[[Piece], None]) -> None:
        self._reserve, self._remove = reserve, remove
        self._held: dict[Hashable, _Held[T]] = {}

    def take(self, key: Hashable, size: int, make: Callable[[Piece], T]) -> T | None:
        """The thing for one more user; None if the device has no room of `size` bytes for it.

        Raises:
            Exception: what `make` raises.
        """
        held = self._held.get(key)
        if held is None:
            memory = self._reserve(size)
            if memory is None:
                return None
            try:
                held = _Held(make(memory), memory)
            except BaseException:
                self._remove(memory)
                raise
            self._held[key] = held
        held.users += 1
        return held.made

    def give(self, key: Hashable) -> None:
        """End the use of a thing by one user."""
        held = self._held[key]
        held.users -= 1
        if not held.users:
            del self._held[key]
            self._remove(held.memory)

    def __len__(self) -> int:
        return len(self._held)
