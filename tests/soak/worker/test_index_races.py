"""Every write to the index at once: the short form of `python -m bench.index_races`."""

from pathlib import Path

import pytest

from storage.index.database import Database
from tests.support.races.race import Load, race

pytestmark = pytest.mark.integration

LOAD = Load(clients=5, workers=3, apis=2, acts=40)
#: acts that clients make; which they choose comes of the seed
CHOSEN = {
    "submit", "submit_once", "evaluate", "chat", "steer", "cancel", "delete_job", "retry", "rescore",
    "resume", "delete_session", "delete_sessions", "change_session", "change_sessions", "upload",
    "delete_file", "store_vector", "delete_vector", "create_batch", "cancel_batch", "revoke_key",
    "touch_keys", "look",
}  # fmt: skip
#: acts that nothing refuses
DONE = {
    "submit", "drain", "reconcile", "expire_sessions", "advance_batches", "lapse",
    "lose_worker", "silence_workers", "say_waiting", "forget_chats", "clear_store",
}  # fmt: skip


def test_all_writes_at_once_leave_the_index_whole(database: Database, tmp_path: Path) -> None:
    # one writer at a time: a statement that waits there holds everybody up, and overlaps with nothing
    hold_up_ms = 0.0 if database.is_sqlite else 2.0
    index = database.url.render_as_string(hide_password=False)
    raced = race(tmp_path, index, seed=1, load=LOAD, hold_up_ms=hold_up_ms)
    assert not raced.faults, "\n\n".join(raced.faults)
    assert {*raced.done, *raced.refused} >= CHOSEN
    assert {*raced.done} >= DONE
