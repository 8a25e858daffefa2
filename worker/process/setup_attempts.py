"""Limit on attempts to start the child.

Celery replaces a dead child for ever. A child that runs out of memory while it loads its model would die
each time.
"""

from pathlib import Path

from actograph.contract.errors import ModelRefused

MOST = 5


class SetupAttempts:
    def __init__(self, path: Path) -> None:
        """`path`: a file shared by all children of one parent."""
        self._path = path

    def begin(self) -> None:
        """Note one attempt.

        Raises:
            ModelRefused: `MOST` attempts have not succeeded.
        """
        with self._path.open("a", encoding="ascii") as file:
            file.write(".")
        if self._path.stat().st_size > MOST:
            raise ModelRefused(
                f"the process died {MOST} times while it loaded the model, most likely out of memory; use "
                "a smaller model or dtype"
            )

    def succeeded(self) -> None:
        self._path.unlink(missing_ok=True)
