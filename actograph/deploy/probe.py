"""Facts about a box: system, GPUs, memory, disk, Pythons. A shell script is all that it needs."""

import shlex
from dataclasses import dataclass

from actograph.deploy.ssh import BoxFailed, Ssh

MIN_PYTHON, MAX_PYTHON = (3, 11), (3, 13)
#: torch with its CUDA libraries, and room for the first sessions
ENV_BYTES, CODE_BYTES = 12 << 30, 1 << 30
_USUAL = 'python3.13 python3.12 python3.11 python3 "$place"/python/cpython-*/bin/python3'
_SCRIPT = r"""
echo "home=$HOME"
echo "system=$(uname -s)"
echo "machine=$(uname -m)"
echo "memory_kib=$(sed -n 's/^MemTotal: *\([0-9]*\).*/\1/p' /proc/meminfo 2>/dev/null)"
place=$HOME/__FOLDER__; case __FOLDER__ in /*) place=__FOLDER__;; esac
disk=$place; while [ ! -d "$disk" ]; do disk=$(dirname "$disk"); done
echo "free_kib=$(df -Pk "$disk" | awk 'NR == 2 {print $4}')"
if command -v nvidia-smi >/dev/null 2>&1; then
  nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader,nounits 2>/dev/null |
    sed 's/^/gpu=/'
fi
for python in __PYTHONS__; do
  path=$(command -v "$python" 2>/dev/null) || continue
  "$path" -c 'import ensurepip, sys, venv; print("python=%d.%d %s" % (*sys.version_info[:2], sys.argv[1]))' \
    "$path" 2>/dev/null
done
exit 0
"""


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """A GPU; memory in MiB."""

    name: str
    memory_mib: int
    driver: str


@dataclass(frozen=True, kw_only=True)
class Facts:
    """A box before the deployment."""

    home: str
    system: str
    machine: str
    memory_bytes: int
    free_bytes: int
    gpus: tuple[Gpu, ...]
    #: a suitable Python; empty without one
    python: str

    def describe(self) -> str:
        """One line for the terminal."""
        gpus = ", ".join(
            f"{gpu.name} ({gpu.memory_mib / 1024:.0f} GiB, driver {gpu.driver})" for gpu in self.gpus
        )
        memory, disk = self.memory_bytes / 2**30, self.free_bytes / 2**30
        return f"{gpus or 'no NVIDIA GPU'}; {memory:.0f} GiB memory, {disk:.0f} GiB free disk, {self.machine}"


def probe(ssh: Ssh, folder: str, python: str | None) -> Facts:
    """Look at a box.

    Args:
        folder: folder of the deployment.
        python: the only Python to look at; None looks at the usual names, and for one that we installed.
    """
    script = _SCRIPT.replace("__FOLDER__", shlex.quote(folder))
    script = script.replace("__PYTHONS__", shlex.quote(python) if python else _USUAL)
    return parse(ssh.run(script), is_chosen=python is not None)


def parse(text: str, *, is_chosen: bool = False) -> Facts:
    """Read the script's output.

    Raises:
        BoxFailed: the box is no Linux, or the chosen Python does not fit.
    """
    pairs = [line.split("=", 1) for line in text.splitlines() if "=" in line]
    values: dict[str, str] = {one[0]: one[1] for one in pairs}
    if values.get("system") != "Linux":
        raise BoxFailed(f"the box runs {values.get('system') or 'an unknown system'}; Linux is needed")
    pythons = [value.split(" ", 1) for name, value in pairs if name == "python"]
    fitting = [path for version, path in pythons if MIN_PYTHON <= _version(version) <= MAX_PYTHON]
    if is_chosen and not fitting:
        found = f"it is {pythons[0][0]}" if pythons else "it cannot be run, or has no venv module"
        raise BoxFailed(f"--python: Python 3.11 to 3.13 is needed; {found}")
    return Facts(
        home=values["home"],
        system=values["system"],
        machine=values.get("machine", ""),
        memory_bytes=_number(values.get("memory_kib")) << 10,
        free_bytes=_number(values.get("free_kib")) << 10,
        gpus=tuple(_gpu(value) for name, value in pairs if name == "gpu"),
        python=fitting[0] if fitting else "",
    )


def check_space(facts: Facts, *, needs_env: bool) -> None:
    """Raise BoxFailed if the disk is too small."""
    needed = ENV_BYTES if needs_env else CODE_BYTES
    if facts.free_bytes < needed:
        raise BoxFailed(
            f"the box has {facts.free_bytes / 2**30:.1f} GiB of free disk and needs {needed / 2**30:.0f} GiB"
        )


def _gpu(value: str) -> Gpu:
    name, memory, driver = (part.strip() for part in value.rsplit(",", 2))
    return Gpu(name=name, memory_mib=_number(memory), driver=driver)


def _version(text: str) -> tuple[int, int]:
    major, _, minor = text.partition(".")
    return int(major), int(minor)


def _number(text: str | None) -> int:
    return int(text) if text and text.isdigit() else 0
