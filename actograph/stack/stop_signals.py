"""Count stop signals: the first asks for an orderly stop, the second for an immediate one."""

import signal
from types import FrameType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopSignals:
    """Counts stop signals while the context lasts. Use it in the main thread."""

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
        """Whether a stop was requested."""
        return self.count > 0

    def insisted(self) -> bool:
        """Whether a stop was requested twice."""
        return self.count > 1

    def _count(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1
