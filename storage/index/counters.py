"""Counters that only grow, for monitoring.

A count is written in the transaction of the counted change, so a killed process neither loses nor repeats it.
Commits of samples write tallies instead, which are added here later; `storage.index.tallies` has the totals.
"""

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from sqlalchemy.orm import Session

from storage.index.upsert import Upsert
from storage.tables.models import CounterRow

_WAITING = "actograph_counts"


class Counter(NamedTuple):
    """Name of a counter, with the job's kind and the outcome; "" if they do not apply."""

    name: str
    kind: str = ""
    status: str = ""


_grow = Upsert(CounterRow, added=["value"])


def add(session: Session, counts: Mapping[Counter, float]) -> None:
    """Add to counters.

    `Database.write` writes them at the end of the transaction: all transactions write the same few rows, so
    these are locked last and briefly.
    """
    waiting: dict[Counter, float] = session.info.setdefault(_WAITING, defaultdict(float))
    for counter, count in counts.items():
        if count:
            waiting[counter] += float(count)


def write(session: Session) -> None:
    """Write the counts that `add` collected in this transaction."""
    waiting: dict[Counter, float] = session.info.pop(_WAITING, {})
    # the same order in every transaction prevents deadlocks on Postgres
    _grow(session, [{**counter._asdict(), "value": count} for counter, count in sorted(waiting.items())])


def add_removed(session: Session, reason: str, *, sessions: int, size: int) -> None:
    """Count removed sessions and their bytes; `reason` is `expired` or `deleted`."""
    removed = {"sessions_removed": sessions, "session_bytes_removed": size}
    add(session, {Counter(name, status=reason): count for name, count in removed.items()})
