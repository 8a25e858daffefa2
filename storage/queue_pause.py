"""The pause of the queue that somebody asked for; it lasts until somebody ends it.

Beside it stands the pause of a nearly full disk (`storage/queue_state.py`), which is written
down nowhere. Both may hold at once, and the end of one does not end the other.
"""

import sqlalchemy as sa
from sqlalchemy.orm import Session

from actograph.contract.resources import QueuePause
from storage.database import now
from storage.models import QueuePauseRow

MANUAL = "manual"
# asked several times for each unit, so it is not put together anew each time
_HOLDS = sa.select(QueuePauseRow.kind).where(QueuePauseRow.kind == MANUAL)


def pause(session: Session, *, by: str, reason: str | None) -> None:
    """Hold the queue. Asking again changes who and why, not since when."""
    row = session.get(QueuePauseRow, MANUAL, with_for_update=True)
    if row is None:
        session.add(QueuePauseRow(kind=MANUAL, reason=reason, paused_by=by, paused_at=now(session)))
    else:
        row.paused_by, row.reason = by, reason
    session.flush()


def resume(session: Session) -> bool:
    """Let the queue go on; False where nobody had paused it."""
    row = session.get(QueuePauseRow, MANUAL, with_for_update=True)
    if row is None:
        return False
    session.delete(row)
    session.flush()
    return True


def find(session: Session) -> QueuePause | None:
    """The pause that somebody asked for, if any."""
    row = session.get(QueuePauseRow, MANUAL)
    if row is None:
        return None
    return QueuePause(kind="manual", reason=row.reason, by=row.paused_by, since=int(row.paused_at))


def holds(session: Session) -> bool:
    """Whether somebody paused the queue. Asked in the transaction that claims, so that nothing is
    claimed once a request to pause was answered."""
    return session.connection().execute(_HOLDS).first() is not None
