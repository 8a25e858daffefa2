"""Queries about other processes, any of which may end first.

A program starts short-lived children at any moment (a library that is looked up runs `ldconfig`), so a walk
over somebody's children always meets one that has just ended.
"""

from pathlib import Path

import psutil


def words_of(process: psutil.Process) -> list[str]:
    """Its command line; empty where it has ended."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:  # a zombie's error is one of these
        return []


def has_ended(process: psutil.Process) -> bool:
    """Whether it runs no more; one that nobody has waited for yet has ended too."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def is_broker(process: psutil.Process) -> bool:
    """Whether it is a Valkey or Redis server."""
    words = words_of(process)
    return bool(words) and Path(words[0].split()[0]).name in ("valkey-server", "redis-server")
