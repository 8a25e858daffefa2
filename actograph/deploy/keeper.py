"""`python -m actograph.deploy.keeper FOLDER NUMBER`: keep one release running on the box.

It starts `actograph up` again if it ends, and stops it in order at SIGTERM. If a release ends before it was
ever ready, the keeper ends with status 1.
"""

import fcntl
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from actograph.deploy.env_file import read_env
from actograph.deploy.on_box.layout import Layout
from actograph.deploy.on_box.service import STOP_SECONDS
from actograph.stack.supervisor import Child, CrashLoop, Program, Supervisor

_TICK_SECONDS = 0.2
_TAIL_LINES = 200
_MARGIN_SECONDS = 20.0
_LOCK_SECONDS = 3.0


def _note(text: str) -> None:
    sys.stderr.write(f"keeper: {text}\n")
    sys.stderr.flush()


def program_of(layout: Layout, number: int, environment: Mapping[str, str]) -> Program:
    """`actograph up` with the arguments and the environment of a release."""
    release = json.loads(layout.release_file(number).read_text(encoding="utf-8"))
    own = {name: value for name, value in environment.items() if not name.startswith("SSH_")}
    secrets = read_env(layout.secrets_file(number)) if layout.secrets_file(number).exists() else {}
    return Program(
        name="actograph up",
        command=[
            *(sys.executable, "-m", "actograph", "up", "--home", str(layout.home)),
            *("--port", str(release["port"]), *release["arguments"]),
        ],
        environment=own | secrets | {"ACTOGRAPH_HOME": str(layout.home)},
        log=layout.log,
        stop_seconds=STOP_SECONDS - _MARGIN_SECONDS,
    )


def _keep(child: Child, supervisor: Supervisor, stopped: threading.Event) -> int:
    """Supervise until a stop signal comes. Returns the exit status."""
    while not stopped.wait(_TICK_SECONDS):
        if not child.ready and any(
            line.startswith("ready: ") for line in child.log.tail(_TAIL_LINES).splitlines()
        ):
            supervisor.mark_ready(child)
        supervisor.check()
        if child.deaths and not child.was_ready:
            _note("the release ended before it was ready")
            return 1
    supervisor.stop([child])
    return 0


def _locked(fd: int) -> bool:
    """Lock the folder. Tries again for a moment: a look at the lock holds it, too."""
    deadline = time.monotonic() + _LOCK_SECONDS
    while time.monotonic() < deadline:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.01)
        else:
            return True
    return False


def main(arguments: list[str]) -> int:
    """Keep a release running. Exit status 1: it cannot run, or another keeper runs."""
    layout, number = Layout(Path(arguments[0])), int(arguments[1])
    stopped = threading.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: stopped.set())
    fd = os.open(layout.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if not _locked(fd):
        _note("another keeper runs in this folder")
        return 1
    os.ftruncate(fd, 0)
    os.pwrite(fd, str(os.getpid()).encode(), 0)
    supervisor = Supervisor(_note)
    try:
        return _keep(supervisor.start(program_of(layout, number, os.environ)), supervisor, stopped)
    except CrashLoop as error:
        _note(str(error))
        return 1
    finally:
        supervisor.kill_all()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
