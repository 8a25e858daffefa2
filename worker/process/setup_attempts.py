"""Limit on attempts to start the child.

Celery replaces a dead child for ever. A child that runs out of memory while it loads its model would die
each time.
"""

from pathlib import Path

MOST = 5


class SetupAttempts:
    def __init__(self, path: Path) -> None:
        """`path`: a file shared by all children of one parent."""
        self._path = path

    def begin(self) -> bool:
        """Note one attempt. Returns False after `MOST` attempts without success."""
        with self._path.open("a", encoding="ascii") as file:
            file.write(".")
        return self._path.stat().st_size <= MOST

    def succeeded(self) -> None:
        self._path.unlink(missing_ok=True)
