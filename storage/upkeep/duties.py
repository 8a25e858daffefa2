"""Duties of the whole deployment: one process at a time does each, at most once per interval."""

import sqlalchemy as sa

from storage.index.database import Database, changed, now
from storage.index.upsert import Upsert
from storage.tables.models import StateRow

_add = Upsert(StateRow, "name")


def take(database: Database, name: str, every_seconds: float) -> bool:
    """True if this process should do the duty now. The next turn is due after `every_seconds`.

    Most calls write nothing. If a process dies in its turn, another one takes the next turn.
    """
    with database.read() as session:
        begun_at = session.scalar(sa.select(StateRow.at).where(StateRow.name == name))
        if begun_at is not None and begun_at > now(session) - every_seconds:
            return False
    with database.write() as session:
        moment = now(session)
        _add(session, [{"name": name, "at": 0.0}])
        due = sa.update(StateRow).where(StateRow.name == name, StateRow.at <= moment - every_seconds)
        return changed(session.execute(due.values(at=moment))) > 0
