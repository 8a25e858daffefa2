"""Bytes of one memory, divided among those that use it."""


class Budget:
    """Bytes of one memory, counted by all that take of it."""

    def __init__(self, total: int) -> None:
        self.total, self.used = total, 0

    @property
    def free(self) -> int:
        return self.total - self.used

    def take(self, size: int) -> bool:
        """Count `size` bytes if they fit."""
        if size > self.free:
            return False
        self.used += size
        return True

    def give(self, size: int) -> None:
        self.used -= size
