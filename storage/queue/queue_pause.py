"""The pause of the queue that somebody asked for; it lasts until somebody ends it.

Beside it stands the pause of a nearly full disk (`storage/queue/queue_state.py`), which is written
down nowhere. Both may hold at once, and the end of one does not end the other.
"""

from typing import cast

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.resources import QueuePause
from storage.index.database import changed, now
from storage.index.upsert import Upsert
from storage.tables.models import QueuePauseRow

MANUAL = "manual"
# asked several times for each unit, so it is not put together anew each time
_HOLDS = sa.select(QueuePauseRow.kind).where(QueuePauseRow.kind == MANUAL)


# two may ask at once
_hold = Upsert(
    cast(sa.Table, QueuePauseRow.__table__), lambda new: {"reason": new.reason, "paused_by": new.paused_by}
)


def pause(session: Session, *, by: str, reason: str | None) -> None:
    """Hold the queue. Asking again changes who and why, not since when."""
    _hold(session, [{"kind": MANUAL, "reason": reason, "paused_by": by, "paused_at": now(session)}])


def resume(session: Session) -> bool:
    """Let the queue go on; False where nobody had paused it."""
    return changed(session.execute(sa.delete(QueuePauseRow).where(QueuePauseRow.kind == MANUAL))) > 0


def find(session: Session) -> QueuePause | None:
    """The pause that somebody asked for, if any."""
    row = session.get(QueuePauseRow, MANUAL, populate_existing=True)
    if row is None:
        return None
    return QueuePause(kind="manual", reason=row.reason, by=row.paused_by, since=int(row.paused_at))


def holds(session: Session) -> bool:
    """Whether somebody paused the queue. Asked in the transaction that claims, so that nothing is
    claimed once a request to pause was answered."""
    return session.connection().execute(_HOLDS).first() is not None
