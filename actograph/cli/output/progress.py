"""A job's progress as it happens: a bar with rate and ETA on a terminal, plain lines elsewhere."""

import sys
import time
from collections import deque
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from actograph.cli.output import tables
from actograph.cli.output.output import note

if TYPE_CHECKING:
    from rich.progress import TaskID

#: the rate is that of the last so many seconds
WINDOW_SECONDS = 60.0
#: a job's status, and what the client and the command line themselves do, while an end can be foretold
UNDER_WAY = frozenset({"in_progress", "reading", "checking", "sending"})
#: least pause between two plain lines
LINE_SECONDS = 2.0


class RateMeter:
    """Samples per second over a sliding window, by the service's own clock."""

    def __init__(self, window: float = WINDOW_SECONDS) -> None:
        self._window = window
        self._points: deque[tuple[float, int]] = deque()

    def add(self, at: float, done: int) -> None:
        """`done` samples had ended at time `at`."""
        self._points.append((at, done))
        # the point before the window stays, else a slow job would have no rate
        while len(self._points) > 2 and self._points[1][0] <= at - self._window:
            self._points.popleft()

    @property
    def per_second(self) -> float | None:
        """None before two points in time are known."""
        if len(self._points) < 2:
            return None
        (start, before), (end, after) = self._points[0], self._points[-1]
        return (after - before) / (end - start) if end > start and after > before else None


class ProgressView(Protocol):
    """Shows numbers of samples, or of another unit, while the context lasts."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def update(self, status: str, done: int, failed: int, total: int, rate: float | None) -> None: ...


class Lines:
    """One line to stderr now and then, for logs and pipes."""

    def __init__(self, pause: float = LINE_SECONDS, unit: str = "samples") -> None:
        self._pause = pause
        self._unit = unit
        self._written_at = -pause
        self._status = ""
        self._pending: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pending is not None:
            note(self._pending)

    def update(self, status: str, done: int, failed: int, total: int, rate: float | None) -> None:
        text = progress_text(status, done, failed, total, rate, unit=self._unit)
        now = time.monotonic()
        if status == self._status and now < self._written_at + self._pause:
            self._pending = text
            return
        self._status, self._written_at, self._pending = status, now, None
        note(text)


class Bar:
    """A bar on a terminal that is drawn over and over in one line."""

    def __init__(self, unit: str = "samples") -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[eta]}"),
            console=Console(stderr=True),
        )
        self._unit = unit
        self._task: TaskID = self._progress.add_task("", total=None, rate="", eta="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def update(self, status: str, done: int, failed: int, total: int, rate: float | None) -> None:
        self._progress.update(
            self._task,
            description=status + (f", {failed} failed" if failed else ""),
            completed=done,
            total=total or None,
            rate=f"{rate:.2f} {self._unit}/s" if rate else "",
            eta=eta_text(status, done, total, rate),
        )


def view(unit: str = "samples") -> ProgressView:
    """A bar where stderr and stdout are a terminal, else lines."""
    return Bar(unit) if sys.stdout.isatty() and sys.stderr.isatty() else Lines(unit=unit)


def progress_text(
    status: str, done: int, failed: int, total: int, rate: float | None, *, unit: str = "samples"
) -> str:
    """`in_progress 312/1319 (2 failed), 4.20 samples/s, ETA 4m0s`."""
    text = f"{status} {done}/{total}" if total else status
    if failed:
        text += f" ({failed} failed)"
    if rate:
        text += f", {rate:.2f} {unit}/s"
    eta = eta_text(status, done, total, rate)
    return f"{text}, {eta}" if eta else text


def eta_text(status: str, done: int, total: int, rate: float | None) -> str:
    """`ETA 4m0s` of what is under way and has something left; else nothing."""
    if status not in UNDER_WAY or not rate or total <= done:
        return ""
    return f"ETA {tables.duration((total - done) / rate)}"
