"""What chats leave to other jobs: they go first, but not for ever."""

import time
from collections.abc import Callable


class ChatShare:
    """Measures for how long a worker has run chats alone.

    Chats are short and many, and clients that ask again as soon as they were answered always have one
    waiting. After `turn_seconds` of them the worker owes a unit to whatever else waits; then chats have as
    long again. A chat still waits for one unit of another job at most.
    """

    def __init__(self, turn_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._turn_seconds = turn_seconds
        self._clock = clock
        self._since: float | None = None

    def begins(self, *, is_chat: bool) -> None:
        """A slice begins."""
        if not is_chat:
            self._since = None
        elif self._since is None:
            self._since = self._clock()

    def is_spent(self) -> bool:
        """Whether a job that is no chat has its turn, where one waits."""
        return self._since is not None and self._clock() - self._since >= self._turn_seconds
