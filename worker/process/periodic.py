"""Threads that repeat their work: the heartbeat, and the look for jobs."""

import random
import threading
from collections.abc import Callable

import sqlalchemy as sa
from sqlalchemy.orm import Session

from storage.index.database import Database
from storage.queue import workers
from worker.signals.attempts import Attempts
from worker.signals.hints import HEARTBEAT_SECONDS, Hints

#: why a worker ends, to be started again
FORGOTTEN = "the worker was silent for so long that the index forgot it"


class Periodic:
    """A thread that calls `work` at once, then at least every `seconds`, until it is stopped."""

    def __init__(
        self, work: Callable[[], object], *, name: str, seconds: float | Callable[[], float], failure: str
    ) -> None:
        """`failure` is logged once for each series of errors."""
        self._work = work
        self._seconds = seconds
        self._attempts = Attempts(failure)
        self._done = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Work at once, or again after the current work."""
        self._wake.set()

    def stop(self) -> None:
        """End the thread after its current work."""
        self._done = True
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self._wake.clear()  # before the look at `_done`, so that `stop` is not missed
            if self._done:
                return
            self._attempts.run(self._work)
            # jittered, so that many workers do not ask at the same moment
            seconds = self._seconds() if callable(self._seconds) else self._seconds
            self._wake.wait(seconds * random.uniform(0.5, 1.0))


def idle_look(look: Callable[[], object], hints: Hints, *, seconds: float) -> Periodic:
    """Looks for jobs in the index after each hint, and regularly, so that no job depends on one."""
    looks = Periodic(
        look,
        name="idle-look",
        seconds=lambda: max(seconds, HEARTBEAT_SECONDS) if hints.are_live else seconds,
        failure="the index could not be read for jobs",
    )
    hints.tell(looks.wake)
    return looks


def heartbeat(
    database: Database,
    worker_id: str,
    *,
    seconds: float,
    memory: Callable[[], dict[str, int]],
    forgotten: Callable[[], object],
    check_leases: Callable[[Session], object] = lambda _session: None,
) -> Periodic:
    """Shows in the index that a worker lives and how much memory it uses, and so renews its leases.

    `check_leases` asks in the same transaction which samples are still the worker's own.

    `forgotten` is called if the index has no row of the
    worker any more: nothing that it claims would stay its own.
    """
    reading = Attempts("the memory in use cannot be read, heartbeats go without it")

    def beat() -> None:
        numbers: dict[str, int] = {}
        can_tell = reading.run(lambda: numbers.update(memory()))
        with database.write() as session:
            if not database.is_sqlite:
                # a lost heartbeat is written again in seconds, and a thousand workers need no fsync each
                session.execute(sa.text("SET LOCAL synchronous_commit = off"))
            is_known = workers.heartbeat(session, worker_id, numbers if can_tell else None)
            check_leases(session)
        if not is_known:
            forgotten()

    return Periodic(beat, name="heartbeat", seconds=seconds, failure="no heartbeat could be written")
