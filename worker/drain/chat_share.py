"""The share of chats in a worker's time: they go first, for a limited time."""

import time
from collections.abc import Callable


class ChatShare:
    """Measures how long a worker has run chats alone.

    A client that asks again after each answer always has a chat waiting. After `turn_seconds` of chats the
    worker owes one batch to another waiting job; then chats go first again. So a chat waits for one batch of
    another job at most.
    """

    def __init__(self, turn_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._turn_seconds = turn_seconds
        self._clock = clock
        self._since: float | None = None

    def begins(self, *, is_chat: bool) -> None:
        """Note the start of a slice."""
        if not is_chat:
            self._since = None
        elif self._since is None:
            self._since = self._clock()

    def is_spent(self) -> bool:
        """Whether another kind of job has its turn."""
        return self._since is not None and self._clock() - self._since >= self._turn_seconds
