"""Wheel and sdist of this checkout, built by the build backend alone: no network, less than a second."""

import subprocess
import sys
import tarfile
from importlib.util import find_spec
from pathlib import Path

from tests.support.servers import Unavailable

REPO = Path(__file__).resolve().parents[2]
_BUILD = "import sys, hatchling.build as backend; print(getattr(backend, sys.argv[1])(sys.argv[2]))"


def build(kind: str, out: Path, source: Path = REPO) -> Path:
    """Build a `wheel`, an `editable` or an `sdist` of a source folder into `out`.

    Raises:
        Unavailable: the build backend is not installed.
    """
    if find_spec("hatchling") is None:
        raise Unavailable("hatchling is missing: pip install -c constraints.txt -e '.[dev]'")
    done = subprocess.run(
        [sys.executable, "-c", _BUILD, f"build_{kind}", str(out)], cwd=source, capture_output=True,
        text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return out / done.stdout.split()[-1]


def wheel_of_sdist(out: Path) -> Path:
    """Build the wheel from an unpacked sdist, as an index's users would. Raises Unavailable."""
    with tarfile.open(build("sdist", out)) as archive:
        archive.extractall(out / "unpacked", filter="data")
    [source] = (out / "unpacked").iterdir()
    return build("wheel", out, source)
