"""Counters that only grow, for monitoring.

A count is written in the transaction of the counted change, so a killed process neither loses nor repeats it.
Each worker adds to rows of its own, so workers do not wait for each other. When a worker is forgotten, its
rows are added to those of NOBODY.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

import sqlalchemy as sa
from sqlalchemy.orm import Session

from storage.index.upsert import Upsert
from storage.tables.models import CounterRow

#: source of counts outside of workers, and of forgotten workers
NOBODY = ""
_WAITING = "actograph_counts"
_TABLE = cast(sa.Table, CounterRow.__table__)


class Counter(NamedTuple):
    """Name of a counter, with the job's kind and the outcome; "" if they do not apply."""

    name: str
    kind: str = ""
    status: str = ""


_Sums = dict[tuple[str, Counter], float]
_grow = Upsert(CounterRow, added=["value"])


def add(session: Session, source: str, counts: Mapping[Counter, float]) -> None:
    """Add to counters; `source` is the id of the counting worker, or NOBODY.

    `Database.write` writes them at the end of the transaction: many transactions write the same few rows, so
    these are locked last and briefly.
    """
    waiting: _Sums = session.info.setdefault(_WAITING, defaultdict(float))
    for counter, count in counts.items():
        if count:
            waiting[source, counter] += float(count)


def write(session: Session) -> None:
    """Write the counts that `add` collected in this transaction."""
    waiting: _Sums = session.info.pop(_WAITING, {})
    # the same order in every transaction prevents deadlocks on Postgres
    rows = [
        {"source": source, **counter._asdict(), "value": count}
        for (source, counter), count in sorted(waiting.items())
    ]
    _grow(session, rows)


def add_removed(session: Session, reason: str, *, sessions: int, size: int) -> None:
    """Count removed sessions and their bytes; `reason` is `expired` or `deleted`."""
    removed = {"sessions_removed": sessions, "session_bytes_removed": size}
    add(session, NOBODY, {Counter(name, status=reason): count for name, count in removed.items()})


def totals(session: Session) -> dict[Counter, float]:
    """All counters, summed over their sources."""
    key = (_TABLE.c.name, _TABLE.c.kind, _TABLE.c.status)
    found = session.execute(sa.select(*key, sa.func.sum(_TABLE.c.value)).group_by(*key))
    return {Counter(*row[:3]): float(row[3]) for row in found}


def hand_on(session: Session, sources: Sequence[str]) -> None:
    """Add the counts of forgotten sources to those of NOBODY."""
    if not sources:
        return
    statement = sa.delete(_TABLE).where(_TABLE.c.source.in_(sources)).returning(*_TABLE.c)
    for row in session.execute(statement).all():
        add(session, NOBODY, {Counter(row.name, row.kind, row.status): row.value})
