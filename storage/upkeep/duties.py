"""Duties of the whole deployment, each done by one process at a time and not more often than due."""

import sqlalchemy as sa
from sqlalchemy.orm import Session

from storage.index.database import Database, changed, now
from storage.index.upsert import Upsert
from storage.tables.models import DutyRow

_add = Upsert(DutyRow, "name")


def take(database: Database, name: str, every_seconds: float) -> bool:
    """Whether this process is to do the duty now; True puts the next turn off by `every_seconds`.

    Most calls find the duty not due and write nothing. A process that dies after its turn began leaves
    the duty to whichever process asks first once the time is over.
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
