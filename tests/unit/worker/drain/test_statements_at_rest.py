"""Statements of a running worker while nothing changes: a few in each heartbeat."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import event

from actograph.settings import Settings
from storage.artifacts.local import LocalStore
from storage.index.database import Database
from storage.queue import workers
from tests.support import leasing
from tests.support.engine_double import OneModel
from tests.support.null_engine import NullEngine
from tests.support.submitting import insert_capture
from worker.drain import scheduler
from worker.drain.drain import Drain
from worker.drain.held_leases import HeldLeases
from worker.process.periodic import heartbeat, idle_look
from worker.signals.hints import HEARTBEAT_SECONDS, Hints, Looks
from worker.signals.stop_signal import StopSignal

WORKER = "wrk_" + "0" * 32
#: statements in a second
MOST = 3


def test_at_rest_a_worker_sends_few_statements(postgres_url: str, tmp_path: Path) -> None:
    database, hints, stop = Database(postgres_url), Hints(), StopSignal()
    hints.are_live = True
    settings = Settings(home=tmp_path, database_url=postgres_url, disk_floor_bytes=0)
    drain = Drain(
        settings=settings,
        database=database,
        store=LocalStore(tmp_path),
        models=OneModel("demo", NullEngine("demo")),  # type: ignore[arg-type]
        worker_id=WORKER,
        stop=stop,
        hints=hints,
    )
    with database.write() as session:
        workers.register(session, WORKER, hostname="here", pid=1, model="demo")
    held = leasing.begin(database, insert_capture(database, "ab"), 2, worker_id=WORKER)
    drain._held_leases = held_leases = HeldLeases(database, WORKER, stop, stall_seconds=60, hints=hints)
    held_leases.add(held)
    beat = heartbeat(
        database,
        WORKER,
        seconds=HEARTBEAT_SECONDS,
        memory=dict,
        forgotten=lambda: None,
        check_leases=drain.check_leases,
    )
    chats, others = Looks(hints, scheduler.CHAT_SECONDS), Looks(hints, scheduler.LOOK_SECONDS)
    first: Any = None

    def a_while(begin: float, seconds: float) -> None:
        """The steps of a running worker in so much time. Its heart beats twice as often as it must."""
        next_beat = begin
        for turn in range(int(seconds / scheduler.CHAT_SECONDS)):
            moment = begin + turn * scheduler.CHAT_SECONDS
            for looks, chats_only in ((chats, True), (others, False)):
                if looks.is_due(moment):
                    looks.begin()
                    assert drain._more(first, 4, chats_only) is None
                    looks.found_nothing(moment)
            if moment >= next_beat:
                next_beat += HEARTBEAT_SECONDS / 2
                beat._work()

    a_while(0.0, 1.0)
    sent = sent_by(database, lambda: a_while(1.0, 60.0))
    assert 0 < len(sent) <= MOST * 60
    assert not any(held_leases.has_lost(lease) for lease in held)
    with database.write() as session:
        leasing.lose(database)
    beat._work()
    assert all(held_leases.has_lost(lease) for lease in held), "the heartbeat asks for them"
    database.close()


def test_an_idle_worker_looks_once_a_heartbeat_and_after_each_hint() -> None:
    hints, looked = Hints(), []
    looks = idle_look(lambda: looked.append(1), hints, seconds=0.5)
    assert callable(looks._seconds)
    assert looks._seconds() == 0.5
    hints.are_live = True
    assert looks._seconds() == HEARTBEAT_SECONDS
    hints.give()
    assert looks._wake.is_set()


def sent_by(database: Database, work: Callable[[], object]) -> list[str]:
    sent: list[str] = []

    def note(*given: Any) -> None:
        sent.append(given[2])

    event.listen(database.engine, "before_cursor_execute", note)
    work()
    event.remove(database.engine, "before_cursor_execute", note)
    return sent
