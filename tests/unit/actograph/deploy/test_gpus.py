"""The cards of a box, by a stand-in for nvidia-smi."""

import os
from pathlib import Path

import pytest

from actograph.deploy.deploy import _machine
from actograph.deploy.on_box import __main__ as on_box

SCRIPT = """#!/bin/sh
case "$1" in
--query-gpu=*) echo "NVIDIA L4, 1200 MiB, 23034 MiB, 550.54" ;;
*) echo "{own}, 900 MiB, python"; echo "1, 300 MiB, /usr/bin/other, with a comma" ;;
esac
"""


def test_a_card_shows_its_used_memory_and_the_processes_of_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(SCRIPT.replace("{own}", str(os.getpid())))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert on_box.gpus() == ["NVIDIA L4, 1200 MiB of 23034 MiB used, 550.54"]
    foreign = "/usr/bin/other, with a comma (pid 1, 300 MiB)"
    # the service is an ancestor of its workers
    assert on_box.gpu_processes(os.getppid()) == [foreign]
    assert on_box.gpu_processes(None) == [f"python (pid {os.getpid()}, 900 MiB)", foreign]
    found = {"gpus": on_box.gpus(), "gpu_processes": [foreign], "memory": 2**35, "free": 2**36}
    said = _machine(found | {"python_version": "3.12"})
    assert said.startswith(f"NVIDIA L4, 1200 MiB of 23034 MiB used, 550.54; others use it: {foreign}; 32 GiB")
