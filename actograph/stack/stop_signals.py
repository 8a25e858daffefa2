"""Ctrl-C and its kin, counted: the first asks for an orderly end, the second for an end at once."""

import signal
from types import FrameType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopSignals:
    """While the context lasts, stop signals are counted instead of ending the process.

    Use it in the main thread.
    """

    def __init__(self) -> None:
        self.count = 0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        for number in SIGNALS:
            self._before[number] = signal.signal(number, self._count)
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def asked(self) -> bool:
        """Whether the end was asked for."""
        return self.count > 0

    def insisted(self) -> bool:
        """Whether it was asked for again."""
        return self.count > 1

    def _count(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1
