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


def main(death_signal: str, parent: str, *command: str) -> None:
    """Replace this process with `command`, which gets the signal when the process `parent` ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(death_signal), 0, 0, 0)
        # the parent may have ended before the call
        if os.getppid() != int(parent):
            sys.exit(1)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(*sys.argv[1:])
