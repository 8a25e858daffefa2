"""A pause that somebody asked for lasts until somebody ends it."""

from collections.abc import Callable

from storage.index.database import Database
from storage.queue import queue_pause


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


def test_two_may_ask_for_it_at_once(database: Database, at_once: Callable[..., None]) -> None:
    at_once(
        lambda session: queue_pause.pause(session, by="key:first", reason="one"),
        lambda session: queue_pause.pause(session, by="key:second", reason="two"),
    )
    with database.read() as session:
        found = queue_pause.find(session)
    assert found is not None
    assert (found.by, found.reason) == ("key:second", "two")


def test_two_may_end_it_at_once(database: Database, at_once: Callable[..., None]) -> None:
    with database.write() as session:
        queue_pause.pause(session, by="local", reason=None)
    ended: list[bool] = []
    at_once(
        lambda session: ended.append(queue_pause.resume(session)),
        lambda session: ended.append(queue_pause.resume(session)),
    )
    assert ended == [True, False]
