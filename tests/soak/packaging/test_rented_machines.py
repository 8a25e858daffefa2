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
found = {}
for name in ("sky-night", "sky", "sky-worker"):
    task = sky.Task.from_yaml(f"deploy/{name}.yaml")
    [first, *_] = task.resources
    down = first.autostop_config.down if first.autostop_config else False
    pool = task.service.min_replicas if task.service else 0
    found[name] = {"run": task.run or "", "gpus": len(task.resources), "down": down, "pool": pool}
print(json.dumps(found))
"""
DSTACK = """
import json, yaml
from dstack._internal.core.models.configurations import parse_run_configuration
found = {}
for name in ("dstack-night", "dstack"):
    one = parse_run_configuration(yaml.safe_load(open(f"deploy/{name}.yml")))
    found[name] = {"kind": one.type, "commands": one.commands, "idle": one.idle_duration}
print(json.dumps(found))
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


def test_skypilot_reads_its_tasks(tmp_path: Path) -> None:
    found = ask(other_programs.sky, SKY, tmp_path)
    assert "actograph drain" in found["sky-night"]["run"]
    assert (found["sky-night"]["gpus"], found["sky-night"]["down"]) == (3, True)
    assert (found["sky"]["pool"], found["sky"]["run"]) == (4, "")
    assert "actograph worker --drain" in found["sky-worker"]["run"]


@pytest.mark.timeout(3000)
def test_dstack_reads_its_tasks(tmp_path: Path) -> None:
    found = ask(other_programs.dstack, DSTACK, tmp_path)
    for name, command in (("dstack-night", "actograph drain"), ("dstack", "actograph worker --drain")):
        assert (found[name]["kind"], found[name]["idle"]) == ("task", 300)
        assert any(command in one for one in found[name]["commands"])
