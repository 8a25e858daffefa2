"""Memory, file handles and threads of a running service's processes, sampled while it works."""

import statistics
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import psutil

from tests.support.processes import is_broker, words_of

SAMPLE_SECONDS = 0.5


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One process at one moment."""

    #: chats that had been answered by then
    done: int
    rss_bytes: int
    handles: int
    threads: int


class ProcessWatch:
    """Reads the processes in a thread of its own. Use as a context manager.

    Raises on exit:
        SystemExit: one of the processes was replaced or has ended.
    """

    def __init__(self, processes: Mapping[str, psutil.Process], done: Callable[[], int]) -> None:
        """`done` counts what the service has answered."""
        self._processes = processes
        self._done = done
        self.readings: dict[str, list[Reading]] = {role: [] for role in processes}
        self._lost: list[str] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "ProcessWatch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        if self._lost:
            raise SystemExit(f"ended while it was watched: {', '.join(self._lost)}")

    def _run(self) -> None:
        while not self._over.wait(SAMPLE_SECONDS):
            done = self._done()
            for role, process in self._processes.items():
                try:
                    with process.oneshot():
                        reading = Reading(
                            done=done,
                            rss_bytes=process.memory_info().rss,
                            handles=process.num_fds(),
                            threads=process.num_threads(),
                        )
                except psutil.NoSuchProcess:
                    self._lost.append(role)
                    return
                self.readings[role].append(reading)


def service_processes() -> dict[str, psutil.Process]:
    """The parts of the `actograph up` that this process runs; a worker's child holds the model."""
    found: dict[str, psutil.Process] = {}
    for process in psutil.Process().children(recursive=True):
        words = words_of(process)
        if "up" in words and "actograph.cli.main" in words:
            found["supervisor"] = process
        elif words[1:3] == ["-m", "api"]:
            found["api"] = process
        elif words[1:3] == ["-m", "worker"]:
            found["worker parent"] = process
        elif any("spawn_main" in word for word in words):
            found["worker child"] = process
        elif is_broker(process):
            found["redis"] = process
    missing = {"api", "worker parent", "worker child", "redis"} - found.keys()
    if missing:
        raise SystemExit(f"cannot be found among the service's processes: {', '.join(sorted(missing))}")
    return found


def growth(readings: list[Reading], *, warm_up: int) -> dict[str, float]:
    """How what one process holds changes with the chats that it has served.

    The first `warm_up` chats are left out. `rss_kib_per_1000_chats` is the slope of a line through the rest
    (least squares), `start` and `end` of memory are medians of the first and the last fifth of it. Handles
    and threads come and go with the clients: of them `start` and `end` are the most in each half.
    """
    rest = [reading for reading in readings if reading.done >= warm_up]
    if len(rest) < 10:
        raise SystemExit("too few chats to say anything of memory; ask for more with --chats")
    fifth, half = max(2, len(rest) // 5), len(rest) // 2
    start = statistics.median(reading.rss_bytes for reading in rest[:fifth])
    end = statistics.median(reading.rss_bytes for reading in rest[-fifth:])
    line = statistics.linear_regression(
        [float(reading.done) for reading in rest], [float(reading.rss_bytes) for reading in rest]
    )
    return {
        "rss_mib_start": start / 2**20,
        "rss_mib_end": end / 2**20,
        "rss_end_to_start": end / start,
        "rss_kib_per_1000_chats": 1000 * line.slope / 1024,
        "handles_start": max(reading.handles for reading in rest[:half]),
        "handles_end": max(reading.handles for reading in rest[half:]),
        "threads_start": max(reading.threads for reading in rest[:half]),
        "threads_end": max(reading.threads for reading in rest[half:]),
    }
