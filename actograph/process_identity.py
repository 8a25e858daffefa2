"""Identity of a process on a machine: its PID namespace, its pid and its start time, as in proc(5)."""

import os
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def pid_namespace() -> str | None:
    """The machine's boot and the PID namespace of this process; a pid says something within them alone.

    Containers have namespaces of their own, also if they share a hostname. Returns None on systems without
    /proc, and where /proc shows another namespace than that of this process.
    """
    try:
        # "/proc/self" leads to the pid in the namespace that /proc was mounted for
        if os.readlink("/proc/self") != str(os.getpid()):  # noqa: PTH115
            return None
        return f"{_BOOT_ID.read_text().strip()} {os.readlink('/proc/self/ns/pid')}"  # noqa: PTH115
    except OSError:
        return None


def start_ticks(pid: int) -> int | None:
    """Start of a process in clock ticks since boot. Returns None if /proc does not show the process."""
    fields = _stat(pid)
    return int(fields[19]) if fields else None


def has_ended(pid: int, started: int) -> bool:
    """True if the process has ended, also if another one has its pid by now. False if /proc hides it.

    Args:
        pid: a pid of this process's namespace.
        started: `start_ticks` of the process.
    """
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # it exists, and is of another user
        pass
    fields = _stat(pid)
    # a zombie has ended, whether its parent knows it or not
    return fields is not None and (fields[0] in "ZX" or int(fields[19]) != started)


def _stat(pid: int) -> list[str] | None:
    """State, parent and so on of a process, as in proc(5); None if /proc does not show it."""
    try:
        # the name in parentheses before them may have spaces
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
