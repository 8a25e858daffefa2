"""Real servers on loopback for tests and benches: Postgres, and OpenStack Swift for S3."""

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

_KEEPER = Path(__file__).with_name("keeper.py")


class Unavailable(Exception):
    """This machine has no such server and could not be given one; the text says what to do."""


def kept(command: Sequence[str], death_signal: signal.Signals, user: str = "") -> list[str]:
    """The command line that runs `command` as `user` and has it end when this process does."""
    words = [sys.executable, "-I", "-S", str(_KEEPER), str(int(death_signal)), str(os.getpid()), user]
    return [*words, *command]
