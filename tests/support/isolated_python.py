"""Virtual environments of their own for packages that tests and benches compare with."""

import fcntl
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.support.servers import Unavailable

REPO = Path(__file__).resolve().parents[2]
_CONSTRAINTS = Path(__file__).with_name("constraints")


def python_with(name: str, package: str, *installs: Sequence[str]) -> Path:
    """The Python of `.venv-<name>`, which is built on the first call, of wheels alone.

    `constraints/<name>.txt`, if there is one, holds the versions of all its packages.

    Args:
        package: what it holds, with its version; another one has it built anew.
        installs: arguments of `pip install`, one call after the other.

    Raises:
        Unavailable: it could not be built, for example without a network.
    """
    venv = REPO / f".venv-{name}"
    stamp = venv / ".installed"
    venv.mkdir(exist_ok=True)
    with (venv / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another run may be at it
        if not stamp.exists() or stamp.read_text() != package:
            pip = [str(venv / "bin/python"), "-m", "pip", "install", "--quiet", "--only-binary=:all:"]
            constraints = _CONSTRAINTS / f"{name}.txt"
            if constraints.exists():
                pip += ["-c", str(constraints)]
            for command in (
                [sys.executable, "-m", "venv", str(venv)],
                *([*pip, *packages] for packages in installs),
            ):
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode:
                    raise Unavailable(f"no {name}: {' '.join(command)} failed: {done.stderr[-400:]}")
            stamp.write_text(package)
    return venv / "bin/python"
