"""Asking a process that has ended: a zombie, and one that is gone."""

import subprocess
import sys
import time

import psutil

from tests.support.processes import has_ended, words_of


def test_of_a_process_that_runs_a_zombie_and_one_that_is_gone() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()", "word"], stdin=subprocess.PIPE) as child:
        process = psutil.Process(child.pid)
        deadline = time.monotonic() + 120
        while words_of(process)[-1:] != ["word"]:  # it has none until its program is loaded
            assert time.monotonic() < deadline
        assert not has_ended(process)
        child.kill()
        while process.status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < deadline
        assert words_of(process) == []
        assert has_ended(process)
    assert words_of(process) == []
    assert has_ended(process)
