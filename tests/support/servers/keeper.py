"""Start a server that dies with its parent, as another user where root may not run it.

`python keeper.py SIGNAL PARENT_PID USER COMMAND...`; USER is "" for the same user. Everything that
needs files of this Python is done before the user changes: the other one may not be able to read them.
"""

import ctypes
import os
import pwd
import sys

PR_SET_PDEATHSIG = 1  # prctl(2); a change of user clears it, execve does not


def main(arguments: list[str]) -> None:
    """Replace this process with COMMAND, which gets SIGNAL when the process PARENT_PID ends."""
    death_signal, parent, user = int(arguments[0]), int(arguments[1]), arguments[2]
    command = arguments[3:]
    libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
    if user:
        entry = pwd.getpwnam(user)
        os.setgroups([])
        os.setgid(entry.pw_gid)
        os.setuid(entry.pw_uid)
    if libc is not None:
        libc.prctl(PR_SET_PDEATHSIG, death_signal, 0, 0, 0)
        if os.getppid() != parent:  # it ended before the call
            sys.exit(1)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
