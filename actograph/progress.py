"""Progress: a bar with rate and ETA in a notebook or terminal, plain lines on stderr elsewhere."""

import html
import importlib
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, Self

if TYPE_CHECKING:
    from rich.progress import TaskID

    from actograph.contract.resources import Job

#: the window of the rate
WINDOW_SECONDS = 60.0
#: statuses with an ETA: a running job, and transfers by the client
ACTIVE = frozenset({"in_progress", "reading", "checking", "sending"})
#: minimum time between two lines
LINE_SECONDS = 2.0


class RateMeter:
    """Completed items per second over a sliding window."""

    def __init__(self, window: float = WINDOW_SECONDS) -> None:
        self._window = window
        self._points: deque[tuple[float, int]] = deque()

    def add(self, at: float, done: int) -> None:
        """Record that `done` items were completed at time `at`."""
        self._points.append((at, done))
        # the last point before the window stays, so that slow jobs have a rate
        while len(self._points) > 2 and self._points[1][0] <= at - self._window:
            self._points.popleft()

    @property
    def per_second(self) -> float | None:
        """The rate; None before two points are known."""
        if len(self._points) < 2:
            return None
        (start, before), (end, after) = self._points[0], self._points[-1]
        return (after - before) / (end - start) if end > start and after > before else None


class View(Protocol):
    """Shows numbers of items while the context lasts."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: object) -> None: ...

    def update(self, status: str, done: int, failed: int, total: int, rate: float | None) -> None: ...


class Lines:
    """Writes a line to stderr every few seconds, for logs and pipes."""

    def __init__(self, pause: float = LINE_SECONDS, unit: str = "samples") -> None:
        self._pause = pause
        self._unit = unit
        self._written_at = -pause
        self._status = ""
        self._pending: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        if self._pending is not None:
            sys.stderr.write(self._pending + "\n")

    def update(self, status: str, done: int, failed: int, total: int, rate: float | None) -> None:
        text = progress_text(status, done, failed, total, rate, unit=self._unit)
        now = time.monotonic()
        if status == self._status and now < self._written_at + self._pause:
            self._pending = text
            return
        self._status, self._written_at, self._pending = status, now, None
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


class Bar:
    """Redraws a bar in one line of a terminal."""

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

    def __exit__(self, *exc: object) -> None:
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


class Update(Protocol):
    """Reports progress."""

    def __call__(self, status: str, done: int, total: int, failed: int = 0) -> None: ...


class NotebookBar:
    """Redraws a bar in the output of a notebook's cell."""

    def __init__(self, unit: str = "samples") -> None:
        self._unit = unit
        self._handle: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def update(self, status: str, done: int, failed: int, total: int, rate: float | None) -> None:
        display = importlib.import_module("IPython.display")
        text = html.escape(progress_text(status, done, failed, total, rate, unit=self._unit))
        shown = display.HTML(f'<progress value="{done}" max="{total or 1}"></progress> {text}')
        if self._handle is None:
            self._handle = display.display(shown, display_id=True)
        else:
            self._handle.update(shown)


def _in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


def view(unit: str = "samples") -> View:
    """Return a bar in a notebook, or if stdout and stderr are terminals; else lines."""
    if _in_notebook():
        return NotebookBar(unit)
    return Bar(unit) if sys.stdout.isatty() and sys.stderr.isatty() else Lines(unit=unit)


@contextmanager
def meter(unit: str = "samples", *, show: bool = True) -> Iterator[Update]:
    """Yield a function that reports progress. The rate of each status counts from its first report."""
    if not show:
        yield lambda status, done, total, failed=0: None
        return
    rates: dict[str, RateMeter] = {}
    with view(unit) as shown:

        def update(status: str, done: int, total: int, failed: int = 0) -> None:
            rate = rates.setdefault(status, RateMeter())
            rate.add(time.monotonic(), done)
            shown.update(status, done, failed, total, rate.per_second)

        yield update


@contextmanager
def follower(*, show: bool) -> Iterator[Callable[["Job"], None]]:
    """Yield a function that shows the progress of a job, at the rate that the service reports."""
    if not show:
        yield lambda job: None
        return
    with view() as shown:

        def update(job: "Job") -> None:
            numbers = job.progress
            done = numbers.completed + numbers.failed
            place = f" #{job.queue_position}" if job.queue_position is not None else ""
            shown.update(f"{job.status}{place}", done, numbers.failed, numbers.total, job.samples_per_second)

        yield update


class ReadMeter:
    """A file that reports its position after each read."""

    def __init__(self, stream: BinaryIO, report: Callable[[int], None]) -> None:
        self._stream = stream
        self._report = report

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __iter__(self) -> Iterator[bytes]:
        return iter(lambda: self.read(1 << 16), b"")

    def read(self, size: int = -1) -> bytes:
        data = self._stream.read(size)
        self._report(self._stream.tell())
        return data


def progress_text(
    status: str, done: int, failed: int, total: int, rate: float | None, *, unit: str = "samples"
) -> str:
    """Return a line such as `in_progress 312/1319 (2 failed), 4.20 samples/s, ETA 4m0s`."""
    text = f"{status} {done}/{total}" if total else status
    if failed:
        text += f" ({failed} failed)"
    if rate:
        text += f", {rate:.2f} {unit}/s"
    eta = eta_text(status, done, total, rate)
    return f"{text}, {eta}" if eta else text


def eta_text(status: str, done: int, total: int, rate: float | None) -> str:
    """Return `ETA 4m0s` for unfinished work with a known rate, else an empty string."""
    if status not in ACTIVE or not rate or total <= done:
        return ""
    return f"ETA {duration((total - done) / rate)}"


def duration(seconds: float) -> str:
    """Return the two largest units, such as `3m20s`."""
    left = max(0, round(seconds))
    days, left = divmod(left, 86400)
    hours, left = divmod(left, 3600)
    minutes, left = divmod(left, 60)
    if days:
        return f"{days}d{hours}h"
    if hours:
        return f"{hours}h{minutes}m"
    if minutes:
        return f"{minutes}m{left}s"
    return f"{left}s"
