"""Child processes that handle data of unknown origin under limits of memory and time.

If the child runs out of memory or crashes, one request fails and nothing else.
"""

import os
import resource
import subprocess
import sys

_KEPT = ("PATH", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "TZ")


def start(module: str, **variables: str) -> subprocess.Popen[bytes]:
    """Run `python -m MODULE`, connected by its standard input and output."""
    return subprocess.Popen(
        [sys.executable, "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=environment() | variables,
    )


def environment() -> dict[str, str]:
    """The child's environment, without the service's secrets."""
    return {name: os.environ[name] for name in _KEPT if name in os.environ}


def limit_memory(size: int) -> None:
    """Limit the data of this process to `size` bytes, and write no core dumps."""
    resource.setrlimit(resource.RLIMIT_DATA, (size, size))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
