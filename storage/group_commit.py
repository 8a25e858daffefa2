"""Small writes of one process that come at the same time share a transaction.

Each commit waits for the disk, and one SQLite file takes one writer at a time. A thread that comes while
another one waits for its turn, or commits, leaves its work with the next, who does all that has gathered and
commits once. Every caller goes on only after its own work is durable, and a fault is its own caller's alone.
"""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from sqlalchemy.orm import Session

T = TypeVar("T")

#: works of one transaction: others who wait for a turn shall not wait long
MOST = 32


class _Work:
    """What one caller wants done."""

    def __init__(self, do: Callable[[Session], Any]) -> None:
        self.do = do
        self.result: Any = None
        self.error: BaseException | None = None
        self.is_done = False
        #: set when the work is done, or when its caller is to do what has gathered
        self.turn = threading.Event()


class GroupCommit:
    """`open_write` opens a transaction that commits when its block ends."""

    def __init__(self, open_write: Callable[[], AbstractContextManager[Session]]) -> None:
        self._open_write = open_write
        self._lock = threading.Lock()
        self._waiting: list[_Work] = []
        self._is_led = False

    def run(self, do: Callable[[Session], T]) -> T:
        """What `do` returns, once it is committed.

        `do` may be run a second time, where it shared its first transaction with one that failed: what it
        wrote the first time was rolled back.

        Raises:
            Exception: what `do` itself, or its commit, raised.
        """
        mine = _Work(do)
        with self._lock:
            self._waiting.append(mine)
            leads, self._is_led = not self._is_led, True
        if not leads:
            mine.turn.wait()
        if not mine.is_done:
            self._lead()
        if mine.error is not None:
            raise mine.error
        result: T = mine.result
        return result

    def _lead(self) -> None:
        """Do what has gathered, the leader's own work first; then let the next one lead."""
        batch: list[_Work] = []
        try:
            try:
                self._together(batch)
            except Exception as error:  # noqa: BLE001 (its caller gets it)
                self._gather(batch)
                if len(batch) == 1:
                    batch[0].error = error
                else:  # whose fault it was shows when each is tried alone
                    for work in batch:
                        self._alone(work)
        except BaseException as error:
            for work in batch:
                work.error = error
            raise
        finally:
            self._pass_on(batch)

    def _together(self, batch: list[_Work]) -> None:
        with self._open_write() as session:
            # only now, so that all who came while this one waited for its turn are in it
            self._gather(batch)
            for work in batch:
                work.result = work.do(session)

    def _gather(self, batch: list[_Work]) -> None:
        if not batch:
            with self._lock:
                batch += self._waiting[:MOST]
                del self._waiting[:MOST]

    def _alone(self, work: _Work) -> None:
        try:
            with self._open_write() as session:
                work.result = work.do(session)
        except Exception as error:  # noqa: BLE001 (its caller gets it)
            work.error = error

    def _pass_on(self, batch: list[_Work]) -> None:
        with self._lock:
            follower = self._waiting[0] if self._waiting else None
            self._is_led = follower is not None
        for work in batch:
            work.is_done = True
            work.turn.set()
        if follower is not None:
            follower.turn.set()
