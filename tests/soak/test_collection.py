"""Tests have the same names in every process: else `make test`, which runs in several, ends at once."""

import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]


def collecting(hash_seed: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "tests"],
        cwd=ROOT,
        env=os.environ | {"PYTHONHASHSEED": hash_seed, "PYTEST_ADDOPTS": ""},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_names_depend_on_neither_the_time_nor_the_hash_seed() -> None:
    first = collecting("1")
    time.sleep(1.5)  # a name made from the time of day in seconds differs
    second = collecting("2")
    names = [[line for line in run.communicate()[0].splitlines() if "::" in line] for run in (first, second)]
    assert (first.returncode, second.returncode) == (0, 0)
    assert len(names[0]) > 1_000
    assert names[0] == names[1]
