"""Writers of one SQLite file, in threads and in other processes, one after the other."""

import subprocess
import sys
import threading
from pathlib import Path

import sqlalchemy as sa

from storage.index.database import Database
from storage.index.write_turns import WriteTurns

HOLD = """
import sys
from pathlib import Path
from storage.index.write_turns import WriteTurns
with WriteTurns(Path(sys.argv[1])).turn():
    print("held", flush=True)
    sys.stdin.readline()
"""


def test_threads_never_hold_a_turn_together(tmp_path: Path) -> None:
    turns, inside, most = WriteTurns(tmp_path / "index.db"), 0, 0

    def write() -> None:
        nonlocal inside, most
        for _ in range(200):
            with turns.turn():
                inside += 1
                most = max(most, inside)
                inside -= 1

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    turns.close()
    assert most == 1


def test_a_process_that_is_killed_gives_its_turn_back(tmp_path: Path) -> None:
    path = tmp_path / "index.db"
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == b"held\n"
        turns, taken = WriteTurns(path), threading.Event()

        def write() -> None:
            with turns.turn():
                taken.set()

        waiting = threading.Thread(target=write)
        waiting.start()
        assert not taken.wait(0.2)
        other.kill()
        other.wait()
        assert taken.wait(120)
        waiting.join()
        turns.close()


def test_one_process_at_a_time_does_what_is_done_for_all(database: Database) -> None:
    other = Database(database.url.render_as_string(hide_password=False))
    with database.alone("work") as first:
        with other.alone("work") as second, other.alone("other work") as third:
            assert (first, second, third) == (True, False, True)
        # whoever was refused holds nothing, and transactions go on meanwhile
        with database.write() as session:
            session.execute(sa.text("SELECT 1"))
    with other.alone("work") as again:
        assert again
    other.close()
