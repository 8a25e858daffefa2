"""Faults inside the service's own processes: a disk that is full, a clock that is wrong.

Python imports this module at its start, because `bench.chaos` puts its folder on the PYTHONPATH of the
service. Nothing of the product knows it. While the file CHAOS_FULL exists, writes to files under the
folder CHAOS_DISK fail with ENOSPC at the write itself; one that did leaves the file CHAOS_FULL.hit. One
worker, whichever holds the lock of the file CHAOS_CLOCK, and its children have a `time.time` that is as
many seconds off as that file says.
"""

import builtins
import errno
import fcntl
import io
import os
import sys
import time
from collections.abc import Callable
from typing import Any

_FULL = os.environ.get("CHAOS_FULL", "")
_DISK = os.environ.get("CHAOS_DISK", "")
_CLOCK = os.environ.get("CHAOS_CLOCK", "")
_CLOCK_IS_WRONG = "CHAOS_CLOCK_IS_WRONG"
_open: Callable[..., Any] = io.open
_time = time.time
_held: list[Any] = []


class FullDisk(io.FileIO):
    """A file whose bytes find no room while the disk is full, if it is one of the disk in question."""

    def __init__(self, file: Any, *arguments: Any, **options: Any) -> None:
        super().__init__(file, *arguments, **options)
        self._on_disk = not isinstance(file, int) and os.fspath(file).startswith(_DISK)

    def write(self, data: Any, /) -> int:
        if self._on_disk and os.path.exists(_FULL):  # noqa: PTH110 (pathlib opens files through us)
            _open(f"{_FULL}.hit", "ab").close()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(data)


def _open_on_disk(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
    """`open`, with files that are new on the disk in question written through `FullDisk`."""
    # a temporary file without a name is opened by its folder
    is_new = "x" in mode or "opener" in options
    if "b" in mode and is_new and not isinstance(file, int) and os.fspath(file).startswith(_DISK):
        raw = FullDisk(file, mode.replace("b", ""), opener=options.get("opener"))
        if options.get("buffering", -1) == 0:
            return raw
        return io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
    return _open(file, mode, *arguments, **options)


def _wrong_time() -> float:
    try:
        with _open(_CLOCK, "rb", buffering=0) as file:
            shift = float(file.read() or 0)
    except (OSError, ValueError):
        shift = 0.0
    return _time() + shift


def _has_wrong_clock() -> bool:
    if _CLOCK_IS_WRONG in os.environ:
        return True
    if sys.orig_argv[1:3] != ["-m", "worker"]:
        return False
    lock = _open(f"{_CLOCK}.lock", "w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        return False
    _held.append(lock)  # until this process ends
    os.environ[_CLOCK_IS_WRONG] = "yes"
    return True


if _FULL and _DISK:
    io.open = _open_on_disk
    builtins.open = _open_on_disk
    io.FileIO = FullDisk  # type: ignore[misc]
if _CLOCK and _has_wrong_clock():
    time.time = _wrong_time
