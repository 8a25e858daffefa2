"""When a worker ends by itself: no open job of its models, or nothing to do for a while."""

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from storage.index.database import Database
from storage.jobs import jobs
from storage.tables.models import JobRow

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Ending:
    """Conditions under which an idle worker ends.

    Attributes:
        drain: no job of its models is open. A job whose last samples run on another worker still is.
        max_idle: seconds without any work; None: no limit.
    """

    drain: bool = False
    max_idle: float | None = None

    @property
    def is_wanted(self) -> bool:
        return self.drain or self.max_idle is not None


class IdleWatch:
    """Calls `end` once an idle worker is to end."""

    def __init__(
        self,
        ending: Ending,
        database: Database,
        served: Sequence[str],
        end: Callable[[], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ending, self._database, self._served, self._end = ending, database, served, end
        self._clock = clock
        self._worked_at = clock()

    def note(self, has_worked: bool) -> None:
        """Follow a look for jobs."""
        if has_worked:
            self._worked_at = self._clock()
        idle = self._clock() - self._worked_at
        if self._ending.max_idle is not None and idle >= self._ending.max_idle:
            logger.info("the worker ends: idle for %.0f s", idle)
            self._end()
        elif self._ending.drain and not has_worked and not self._has_open_jobs():
            logger.info("the worker ends: no job of %s is open", ", ".join(self._served))
            self._end()

    def _has_open_jobs(self) -> bool:
        is_open = sa.exists().where(JobRow.model.in_(self._served), JobRow.status.in_(jobs.ACTIVE))
        with self._database.read() as session:
            return bool(session.scalar(sa.select(is_open)))
