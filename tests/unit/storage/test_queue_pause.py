"""A pause that somebody asked for lasts until somebody ends it."""

from storage import queue_pause
from storage.database import Database


def test_it_holds_from_pause_to_resume(database: Database) -> None:
    with database.read() as session:
        assert queue_pause.find(session) is None
        assert not queue_pause.holds(session)
    with database.write() as session:
        queue_pause.pause(session, by="local", reason="maintenance")
    with database.read() as session:
        found = queue_pause.find(session)
        assert queue_pause.holds(session)
    assert found is not None
    assert (found.kind, found.by, found.reason) == ("manual", "local", "maintenance")
    with database.write() as session:
        queue_pause.pause(session, by="key:0123abcd", reason=None)
    with database.write() as session:
        again = queue_pause.find(session)
        assert again is not None
        assert (again.by, again.reason, again.since) == ("key:0123abcd", None, found.since)
        assert queue_pause.resume(session)
        assert not queue_pause.resume(session)
        assert not queue_pause.holds(session)
