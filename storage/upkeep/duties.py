"""Duties of the whole deployment: one process at a time does each, at most once per interval."""

import sqlalchemy as sa
from sqlalchemy.orm import Session

from storage.index.database import Database, changed, now
from storage.index.upsert import Upsert
from storage.tables.models import DutyRow

_add = Upsert(DutyRow, "name")


def take(database: Database, name: str, every_seconds: float) -> bool:
    """True if this process should do the duty now. The next turn is due after `every_seconds`.

    Most calls write nothing. If a process dies in its turn, another one takes the next turn.
    """
    with database.read() as session:
        begun_at = session.scalar(sa.select(DutyRow.begun_at).where(DutyRow.name == name))
        if begun_at is not None and begun_at > now(session) - every_seconds:
            return False
    with database.write() as session:
        if begun_at is None:
            _add(session, [{"name": name, "begun_at": 0.0}])
        return _begin(session, name, every_seconds)


def _begin(session: Session, name: str, every_seconds: float) -> bool:
    moment = now(session)
    begun = session.execute(
        sa.update(DutyRow)
        .where(DutyRow.name == name, DutyRow.begun_at <= moment - every_seconds)
        .values(begun_at=moment)
    )
    return changed(begun) > 0
