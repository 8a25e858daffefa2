"""Start a program that dies with its parent: `python launcher.py SIGNAL PARENT_PID COMMAND...`.

A program of its own, and not a `preexec_fn`, because running Python between fork and exec is not safe
once the parent has threads. It imports nothing of this package, so that it starts in milliseconds.
"""

import ctypes
import os
import sys

# linux/prctl.h; see prctl(2). The signal survives execve.
PR_SET_PDEATHSIG = 1


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
