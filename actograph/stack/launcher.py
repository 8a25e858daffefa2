"""Start a program that ends with its parent: `python launcher.py SIGNAL PARENT_PID COMMAND...`.

Not a `preexec_fn`: running Python between fork and exec is unsafe in a parent with threads. This program
imports nothing of the package, so it starts in milliseconds.
"""

import ctypes
import os
import sys
from collections.abc import Sequence

# linux/prctl.h; see prctl(2). The signal survives execve.
PR_SET_PDEATHSIG = 1


def launched(command: Sequence[str], death_signal: int) -> list[str]:
    """Return the command line that starts `command` with `death_signal` at the end of this process."""
    return [sys.executable, "-I", "-S", __file__, str(int(death_signal)), str(os.getpid()), *command]


def main(arguments: list[str]) -> None:
    """Replace this process with COMMAND, which gets SIGNAL when the process PARENT_PID ends."""
    death_signal, parent = int(arguments[0]), int(arguments[1])
    command = arguments[2:]
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_SET_PDEATHSIG, death_signal, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
        # the parent may have ended before the call
        if os.getppid() != parent:
            sys.exit(1)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
