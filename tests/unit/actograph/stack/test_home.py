import os
import subprocess
import sys
from pathlib import Path

import pytest

from actograph.contract.errors import Conflict
from actograph.stack.home import locked

HOLD = """
import sys, time
from pathlib import Path
from actograph.stack.home import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_the_second_is_refused_with_the_first_ones_pid(tmp_path: Path) -> None:
    with locked(tmp_path / "home"), pytest.raises(Conflict, match=rf"pid {os.getpid()}\b.*--home"):
        locked(tmp_path / "home").__enter__()
    with locked(tmp_path / "home"):
        pass


def test_a_process_that_was_killed_leaves_no_lock(tmp_path: Path) -> None:
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    with holder.stdout:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(Conflict, match=f"pid {holder.pid}"):
            locked(tmp_path).__enter__()
        holder.kill()
        holder.wait()
    with locked(tmp_path):
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"
