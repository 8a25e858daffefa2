"""Threads of a serving process share two heaps of malloc's."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import ctypes, threading
from api.heap import limit_arenas
print(limit_arenas())
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
both = threading.Barrier(24)
def work():
    both.wait()
    for _ in range(200): assert libc.malloc(1000)
    both.wait()
threads = [threading.Thread(target=work) for _ in range(24)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
libc.malloc_stats()
"""


@pytest.mark.skipif(
    sys.platform != "linux" or "glibc" not in os.confstr("CS_GNU_LIBC_VERSION"),  # type: ignore[operator]
    reason="malloc's heaps are glibc's",
)
@pytest.mark.parametrize(("environment", "limits"), [({}, True), ({"MALLOC_ARENA_MAX": "4"}, False)])
def test_threads_share_two_heaps_unless_the_operator_says_otherwise(
    environment: dict[str, str], limits: bool
) -> None:
    outside = {name: value for name, value in os.environ.items() if name != "MALLOC_ARENA_MAX"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=outside | environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [str(limits)]
    arenas = done.stderr.count("Arena ")
    assert arenas == (2 if limits else 4)
