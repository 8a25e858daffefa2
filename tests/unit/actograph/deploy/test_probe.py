"""Facts about a box, read from the output of the script, and of the script itself."""

import subprocess

import pytest

from actograph.deploy import probe
from actograph.deploy.ssh import BoxFailed

OUTPUT = """\
home=/home/me
system=Linux
machine=x86_64
memory_kib=131923968
free_kib=52428800
gpu=NVIDIA H200, 143771, 570.86.15
gpu=NVIDIA H200, 143771, 570.86.15
python=3.10 /usr/bin/python3
python=3.12 /opt/python3.12
"""


def test_a_box_is_described() -> None:
    facts = probe.parse(OUTPUT)
    assert (facts.python, facts.home, facts.free_bytes) == ("/opt/python3.12", "/home/me", 50 << 30)
    assert [gpu.driver for gpu in facts.gpus] == ["570.86.15"] * 2
    assert facts.describe().endswith("; 126 GiB memory, 50 GiB free disk, x86_64")
    assert facts.describe().startswith("NVIDIA H200 (140 GiB, driver 570.86.15), ")


def test_a_box_without_a_fitting_python_or_gpu() -> None:
    text = "\n".join(line for line in OUTPUT.splitlines() if "gpu" not in line and "3.12" not in line)
    assert probe.parse(text).python == ""
    assert probe.parse(text).describe().startswith("no NVIDIA GPU; ")
    with pytest.raises(BoxFailed, match=r"--python: Python 3\.11 to 3\.13 is needed; it is 3\.10"):
        probe.parse(text, is_chosen=True)


def test_other_systems_and_small_disks_are_refused() -> None:
    with pytest.raises(BoxFailed, match="the box runs Darwin; Linux is needed"):
        probe.parse(OUTPUT.replace("Linux", "Darwin"))
    small = probe.parse(OUTPUT.replace("52428800", "2097152"))
    probe.check_space(small, needs_env=False)
    with pytest.raises(BoxFailed, match=r"2\.0 GiB of free disk and needs 12 GiB"):
        probe.check_space(small, needs_env=True)


def test_the_script_runs_in_a_plain_shell() -> None:
    class Here:
        def run(self, script: str) -> str:
            return subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout

    facts = probe.probe(Here(), "no/such folder", None)  # type: ignore[arg-type]
    assert facts.system == "Linux"
    assert facts.free_bytes > 0
    assert facts.memory_bytes > 0
