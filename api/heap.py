"""Keeps a serving process's memory flat."""

import ctypes
import os
import sys

#: glibc's number of this parameter, see malloc.h
_M_ARENA_MAX = -8
ARENAS = 2


def limit_arenas() -> bool:
    """Have glibc's malloc use two heaps; returns whether it does. Call it before threads are started.

    By default it makes up to eight for each core, as threads come. Requests run in up to 40 threads, so that
    what SQLite and the parsers take and give back left holes in dozens of heaps: 64 chat clients raised a
    process's memory by some 5 MiB for each 1,000 chats, and with two heaps by none. What Python itself
    takes lies outside of them. Nothing is changed where MALLOC_ARENA_MAX is set, or without glibc.
    """
    if sys.platform != "linux" or "MALLOC_ARENA_MAX" in os.environ:
        return False
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_ARENA_MAX, ARENAS))
