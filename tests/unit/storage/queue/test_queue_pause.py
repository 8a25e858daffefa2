"""A pause that somebody asked for lasts until somebody ends it."""

from collections.abc import Callable

from storage.index.database import Database
from storage.queue import pause


def test_it_holds_from_pause_to_resume(database: Database) -> None:
    with database.read() as session:
        assert pause.find(session) is None
        assert not pause.holds(session)
    with database.write() as session:
        pause.start(session, by="local", reason="maintenance")
    with database.read() as session:
        found = pause.find(session)
        assert pause.holds(session)
    assert found is not None
    assert (found.kind, found.by, found.reason) == ("manual", "local", "maintenance")
    with database.write() as session:
        pause.start(session, by="key:0123abcd", reason=None)
    with database.write() as session:
        again = pause.find(session)
        assert again is not None
        assert (again.by, again.reason, again.since) == ("key:0123abcd", None, found.since)
        assert pause.end(session)
        assert not pause.end(session)
        assert not pause.holds(session)


def test_two_may_ask_for_it_at_once(database: Database, at_once: Callable[..., None]) -> None:
    at_once(
        lambda session: pause.start(session, by="key:first", reason="one"),
        lambda session: pause.start(session, by="key:second", reason="two"),
    )
    with database.read() as session:
        found = pause.find(session)
    assert found is not None
    assert (found.by, found.reason) == ("key:second", "two")


def test_two_may_end_it_at_once(database: Database, at_once: Callable[..., None]) -> None:
    with database.write() as session:
        pause.start(session, by="local", reason=None)
    ended: list[bool] = []
    at_once(
        lambda session: ended.append(pause.end(session)), lambda session: ended.append(pause.end(session))
    )
    assert ended == [True, False]
