"""Waiting for what happens in another thread or process."""

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], bool], watch: Callable[[], None] = lambda: None) -> None:
    """Wait until the condition holds; `watch` raises where that is in vain."""
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        watch()
        time.sleep(0.02)
