"""Detect a program whose child processes keep dying.

A worker restarts the child process that loads the model whenever it dies. If the kernel kills the child for
lack of memory, this is the only sign.
"""

from pathlib import Path

from actograph.stack.supervisor import Child

_PROC = Path("/proc")


class LostChildren:
    """Counts the ended child processes of a program since its start."""

    def __init__(self, child: Child) -> None:
        self._child = child
        self._pid: int | None = None
        self._seen: set[int] = set()
        self.count = 0

    def look(self) -> int:
        """Update the count and return it."""
        pid = self._child.pid
        if pid is None or pid != self._pid:
            self._pid, self._seen, self.count = pid, set(), 0
        if pid is not None:
            now = children_of(pid)
            self.count += len(self._seen - now)
            self._seen = now
        return self.count


def children_of(pid: int) -> set[int]:
    """Pids of direct children; empty if the kernel does not report them."""
    found: set[int] = set()
    for task in (_PROC / str(pid) / "task").glob("*/children"):
        try:
            found.update(map(int, task.read_text().split()))
        except OSError:
            continue  # the thread or process has ended
    return found
