"""A Python for boxes without one: uv from the package index, sent to the box, installs it there."""

import shlex
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from actograph.contract.errors import ServiceUnavailable
from actograph.deploy.ssh import Ssh

VERSION = "3.12"
_GLIBC = ("2014", "_2_17", "_2_28")


def install_python(ssh: Ssh, root: str, machine: str, note: Callable[[str], None]) -> str:
    """Install Python in the folder of the deployment and return its path.

    uv downloads it from GitHub, or from the mirror of the box's UV_PYTHON_INSTALL_MIRROR.

    Raises:
        ServiceUnavailable: pip found no uv for the box.
        BoxFailed: uv could not download Python.
    """
    note(f"no Python 3.11 to 3.13 with venv on the box: installing {VERSION} in {root}/python")
    uv, place = shlex.quote(f"{root}/tools/uv"), shlex.quote(f"{root}/python")
    with tempfile.TemporaryDirectory() as folder:
        program = _uv_of(machine, Path(folder))
        with program.open("rb") as content:
            ssh.run(
                f"umask 077 && mkdir -p {shlex.quote(root)}/tools && cat > {uv} && chmod 700 {uv}", content
            )
    variables = f"UV_PYTHON_INSTALL_DIR={place} UV_CACHE_DIR={place}/cache UV_NO_CONFIG=1"
    ssh.run(f"{variables} {uv} --quiet python install --no-bin {VERSION}")
    return ssh.run(f"{variables} {uv} python find --managed-python {VERSION}").strip()


def _uv_of(machine: str, folder: Path) -> Path:
    """Download uv's wheel for a machine and take the program out of it."""
    tags = [word for glibc in _GLIBC for word in ("--platform", f"manylinux{glibc}_{machine}")]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "download", "uv", "--quiet", "--disable-pip-version-check"),
            *("--no-deps", "--only-binary=:all:", *tags, "--dest", str(folder)),
        ],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    wheels = list(folder.glob("uv-*.whl"))
    if done.returncode != 0 or not wheels:
        raise ServiceUnavailable(f"pip has no uv for {machine}: {' '.join(done.stderr.split())[-300:]}")
    with zipfile.ZipFile(wheels[0]) as wheel:
        name = next(name for name in wheel.namelist() if name.endswith(".data/scripts/uv"))
        return Path(wheel.extract(name, folder))
