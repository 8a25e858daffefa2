"""The tasks for SkyPilot and dstack, read by these programs themselves. Nothing is rented."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import other_programs
from tests.support.availability import unavailable
from tests.support.isolated_python import REPO
from tests.support.servers import Unavailable

SKY = """
import json, sky
task = sky.Task.from_yaml("deploy/sky.yaml")
[first, *_] = task.resources
print(json.dumps({"run": task.run, "gpus": len(task.resources), "down": first.autostop_config.down}))
"""
DSTACK = """
import json, yaml
from dstack._internal.core.models.configurations import parse_run_configuration
found = parse_run_configuration(yaml.safe_load(open("deploy/dstack.yml")))
print(json.dumps({"kind": found.type, "commands": found.commands, "idle": found.idle_duration}))
"""


def ask(build: Callable[[], Path], script: str, home: Path) -> dict[str, Any]:
    try:
        python = build()
    except Unavailable as error:
        unavailable(str(error))
    done = subprocess.run(
        [str(python), "-c", script], cwd=REPO, capture_output=True, text=True, check=False,
        env={"PATH": os.environ["PATH"], "HOME": str(home), "AWS_ACCESS_KEY_ID": "a", "HF_TOKEN": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_skypilot_reads_its_task(tmp_path: Path) -> None:
    found = ask(other_programs.sky, SKY, tmp_path)
    assert "actograph drain" in found["run"]
    assert (found["gpus"], found["down"]) == (3, True)


@pytest.mark.timeout(3000)
def test_dstack_reads_its_task(tmp_path: Path) -> None:
    found = ask(other_programs.dstack, DSTACK, tmp_path)
    assert (found["kind"], found["idle"]) == ("task", 300)
    assert any("actograph drain" in command for command in found["commands"])
