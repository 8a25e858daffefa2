"""Counts that only grow, kept in the index beside what they count.

A count is written in the transaction of what it counts, so that it is neither lost with a killed process
nor made twice. Each worker adds to rows of its own, so that workers never wait for each other; when a
worker is forgotten its rows are added to those of nobody.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

import sqlalchemy as sa
from sqlalchemy.orm import Session

from storage.index.upsert import Upsert
from storage.tables.models import CounterRow

#: the source of what no live worker counts
NOBODY = ""
_WAITING = "actograph_counts"
_TABLE = cast(sa.Table, CounterRow.__table__)


class Counter(NamedTuple):
    """Name of a counter with job kind and outcome; "" if not applicable."""

    name: str
    kind: str = ""
    status: str = ""


_Sums = dict[tuple[str, Counter], float]
_grow = Upsert(CounterRow, added=["value"])


def add(session: Session, source: str, counts: Mapping[Counter, float]) -> None:
    """Add to counts; `source` is the id of the worker that counts, or NOBODY.

    They are written when the transaction ends, by `Database.write`: everyone writes to the same few rows, so
    these are held as briefly as can be, and nobody waits for others while holding them.
    """
    waiting: _Sums = session.info.setdefault(_WAITING, defaultdict(float))
    for counter, count in counts.items():
        if count:
            waiting[source, counter] += float(count)


def write(session: Session) -> None:
    """Write what `add` has gathered in this transaction."""
    waiting: _Sums = session.info.pop(_WAITING, {})
    # one order for all, so that Postgres finds no deadlock
    rows = [
        {"source": source, **counter._asdict(), "value": count}
        for (source, counter), count in sorted(waiting.items())
    ]
    _grow(session, rows)


def add_removed(session: Session, reason: str, *, sessions: int, size: int) -> None:
    """Count sessions that were removed, and their bytes; `reason` is `expired` or `deleted`."""
    removed = {"sessions_removed": sessions, "session_bytes_removed": size}
    add(session, NOBODY, {Counter(name, status=reason): count for name, count in removed.items()})


def totals(session: Session) -> dict[Counter, float]:
    """Every count over all sources."""
    key = (_TABLE.c.name, _TABLE.c.kind, _TABLE.c.status)
    found = session.execute(sa.select(*key, sa.func.sum(_TABLE.c.value)).group_by(*key))
    return {Counter(*row[:3]): float(row[3]) for row in found}


def hand_on(session: Session, sources: Sequence[str]) -> None:
    """Add what these sources counted to what nobody counts, since they are forgotten."""
    if not sources:
        return
    statement = sa.delete(_TABLE).where(_TABLE.c.source.in_(sources)).returning(*_TABLE.c)
    for row in session.execute(statement).all():
        add(session, NOBODY, {Counter(row.name, row.kind, row.status): row.value})
