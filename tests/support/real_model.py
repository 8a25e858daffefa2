"""SmolLM2-135M-Instruct: a real model for tests and benches, made once per checkout."""

import fcntl
import subprocess
import sys
from pathlib import Path

from tests.support.isolated_python import REPO
from tests.support.servers import Unavailable

_FOLDER = REPO / ".venv-smollm2"  # ignored by git like other programs


def smollm2() -> Path:
    """Folder of the model, which is made on the first call.

    Raises:
        Unavailable: it could not be made, for example without a network.
    """
    _FOLDER.mkdir(exist_ok=True)
    with (_FOLDER / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another run may be at it
        made, done = _FOLDER / "model", _FOLDER / ".done"
        if not done.exists():
            command = [sys.executable, "-m", "training.smollm2", str(made)]
            made_it = subprocess.run(command, cwd=REPO, capture_output=True, text=True, check=False)
            if made_it.returncode:
                raise Unavailable(f"no SmolLM2: {' '.join(command)} failed: {made_it.stderr[-400:]}")
            done.touch()
    return made
