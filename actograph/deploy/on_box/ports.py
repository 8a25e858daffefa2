"""The process that listens on a port, from /proc."""

import os
import signal
import time
from pathlib import Path

from .layout import BoxError, Layout

_LISTEN = "0A"
_TERM_SECONDS = 20.0
_KILL_SECONDS = 5.0


def free(layout: Layout, port: int) -> str | None:
    """End a process of this deployment that still listens on the port. Returns one line about it.

    Raises:
        BoxError: another program listens there; it is named and left alone.
    """
    inodes = _listening(port)
    if not inodes:
        return None
    pid = _holder(set(inodes))
    if pid is None:
        users = ", ".join(sorted({str(uid) for uid in inodes.values()}))
        raise BoxError(
            f"port {port} is used by a process of another user (uid {users}); choose another --port"
        )
    words = _words(pid)
    if not _is_ours(layout, pid):
        raise BoxError(
            f"port {port} is used by pid {pid} ({words}); it was left alone. Choose another --port"
        )
    for number, seconds in ((signal.SIGTERM, _TERM_SECONDS), (signal.SIGKILL, _KILL_SECONDS)):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            break
        deadline = time.monotonic() + seconds
        while _listening(port) and time.monotonic() < deadline:
            time.sleep(0.05)
        if not _listening(port):
            break
    else:
        raise BoxError(f"pid {pid} ({words}) does not release port {port}")
    return f"ended pid {pid}, a stale process of this deployment on port {port}: {words}"


def _listening(port: int) -> dict[str, int]:
    """Inode -> uid of the sockets that listen on a TCP port."""
    found = {}
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        try:
            lines = table.read_text().splitlines()[1:]
        except FileNotFoundError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == _LISTEN and int(fields[1].rpartition(":")[2], 16) == port:
                found[fields[9]] = int(fields[7])
    return found


def _holder(inodes: set[str]) -> int | None:
    """The first process that has one of these sockets open; None if it belongs to another user."""
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            if any(str(link.readlink()) in wanted for link in (process / "fd").iterdir()):
                return int(process.name)
        except OSError:  # ended, or of another user
            continue
    return None


def _words(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return "ended"
    return " ".join(word.decode(errors="replace") for word in words if word)[:200]


def _is_ours(layout: Layout, pid: int) -> bool:
    """Whether a process works on the home folder of this deployment."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return f"ACTOGRAPH_HOME={layout.home}".encode() in variables
