"""Progress on stderr: a bar with rate and ETA on a terminal, a line every few seconds elsewhere."""

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, Self

from actograph.short_texts import duration

if TYPE_CHECKING:
    from actograph.contract.resources import Job

#: statuses with an ETA: a running job, and transfers by the client
ACTIVE = frozenset({"in_progress", "reading", "checking", "sending"})
#: minimum time between two lines
LINE_SECONDS = 2.0
BAR_COLUMNS = 20


class Update(Protocol):
    """Reports progress."""

    def __call__(self, status: str, done: int, total: int, failed: int = 0) -> None: ...


class ProgressLines:
    """Writes a line at each change of the status and every few seconds, and the last state at the end."""

    def __init__(self) -> None:
        self._status, self._written_at, self._pending = "", 0.0, ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        sys.stderr.write(self._pending)

    def show(self, status: str, text: str, done: int, total: int) -> None:
        self._pending = f"{text}\n"
        if status != self._status or time.monotonic() >= self._written_at + LINE_SECONDS:
            sys.stderr.write(self._pending)
            sys.stderr.flush()
            self._status, self._written_at, self._pending = status, time.monotonic(), ""

    def note(self, text: str) -> None:
        """Write a line of its own."""
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


class ProgressBar:
    """Redraws a bar in one line of a terminal or of a notebook's output."""

    def __init__(self) -> None:
        self._last = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        sys.stderr.write("\n" if self._last else "")

    def show(self, status: str, text: str, done: int, total: int) -> None:
        filled = BAR_COLUMNS * done // max(total, 1)
        line = f"{'━' * filled:{BAR_COLUMNS}} {text}"[: shutil.get_terminal_size().columns - 1]
        # spaces cover the rest of a longer line before
        sys.stderr.write(f"\r{line:{len(self._last)}}")
        sys.stderr.flush()
        self._last = line

    def note(self, text: str) -> None:
        """Write a line of its own above the bar."""
        sys.stderr.write(f"\r{text:{len(self._last)}}\n")
        sys.stderr.flush()
        self._last = ""


def view() -> ProgressBar | ProgressLines:
    """Return a bar in notebooks, and if stdout and stderr are terminals; else lines."""
    in_notebook = type(sys.stderr).__module__.startswith("ipykernel.")
    return ProgressBar() if in_notebook or (sys.stdout.isatty() and sys.stderr.isatty()) else ProgressLines()


@contextmanager
def meter(unit: str = "samples", *, show: bool = True) -> Iterator[Update]:
    """Yield a function that reports progress. The rate of each status counts from its first report."""
    if not show:
        yield lambda status, done, total, failed=0: None
        return
    begun: dict[str, tuple[float, int]] = {}
    with view() as shown:

        def update(status: str, done: int, total: int, failed: int = 0) -> None:
            began, first = begun.setdefault(status, (time.monotonic(), done))
            seconds = time.monotonic() - began
            rate = (done - first) / seconds if done > first and seconds > 0 else None
            shown.show(status, progress_text(status, done, failed, total, rate, unit=unit), done, total)

        yield update


@contextmanager
def follower(*, show: bool) -> Iterator[Callable[["Job"], None]]:
    """Yield a function that shows the progress of a job, at the rate that the service reports.

    It tells when no worker can run the job, and when one is back.
    """
    if not show:
        yield lambda job: None
        return
    told: str | None = None
    with view() as shown:

        def update(job: "Job") -> None:
            nonlocal told
            if job.waiting_reason != told:
                told = job.waiting_reason
                shown.note(f"waiting: {told}" if told else "a worker is back")
            numbers = job.progress
            status = job.status if job.queue_position is None else f"{job.status} #{job.queue_position}"
            done, total = numbers.completed + numbers.failed, numbers.total
            text = progress_text(status, done, numbers.failed, total, job.samples_per_second)
            shown.show(status, text, done, total)

        yield update


class ReadMeter:
    """A file that reports its position after each read."""

    def __init__(self, stream: BinaryIO, report: Callable[[int], None]) -> None:
        self._stream, self._report = stream, report

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
    text += f" ({failed} failed)" if failed else ""
    text += f", {rate:.2f} {unit}/s" if rate else ""
    if rate and status in ACTIVE and total > done:
        text += f", ETA {duration((total - done) / rate)}"
    return text
