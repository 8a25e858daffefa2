"""Notices a program that keeps losing its own child processes and so never gets anywhere.

A worker's parent process replaces the child that loads the model whenever that dies, for ever. Where the
kernel kills the child for want of memory, nothing else tells.
"""

from pathlib import Path

from actograph.stack.supervisor import Child

_PROC = Path("/proc")


class LostChildren:
    """Counts the child processes of one program that have ended since it was last started."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self._pid: int | None = None
        self._seen: set[int] = set()
        self.count = 0

    def look(self) -> int:
        """Take notice of how things stand; returns the number of children lost so far."""
        pid = self._child.pid
        if pid is None or pid != self._pid:
            self._pid, self._seen, self.count = pid, set(), 0
        if pid is not None:
            now = children_of(pid)
            self.count += len(self._seen - now)
            self._seen = now
        return self.count


def children_of(pid: int) -> set[int]:
    """Direct children of a process; empty where this kernel does not tell."""
    found: set[int] = set()
    for task in (_PROC / str(pid) / "task").glob("*/children"):
        try:
            found.update(map(int, task.read_text().split()))
        except OSError:
            continue  # the thread or the process has just ended
    return found
