"""The program that measures a GPU, run on a CPU: it works, whatever its figures are."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.integration

REPO = Path(__file__).resolve().parents[3]
CAPTURES = ["nothing", "3 layers x 2", "all layers x 2"]


def measured(file: Path, *words: str) -> Any:
    command = [sys.executable, "-m", "bench.gpu", "--device", "cpu", "--shapes", "tiny", "--live", "1", "4"]
    ended = subprocess.run(
        [*command, *words, "--json", str(file)], cwd=REPO, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return json.loads(file.read_text())


def test_every_case_is_measured(tmp_path: Path) -> None:
    result = measured(tmp_path / "gpu.json", "--seconds", "1")
    assert (result["left_out"], result["marks"]) == ({}, [])
    tiny = result["shapes"]["tiny"]
    found = {(one["live"], one["replayed"], one["captured"]) for one in tiny["paces"]}
    assert found == {(live, False, captured) for live in (1, 4) for captured in CAPTURES}
    # how much was done in the time is the machine's affair
    assert all(one["row_bytes_per_second"] == 0 for one in tiny["paces"] if one["captured"] == "nothing")
    assert tiny["disk"].keys() == {"bytes", "bytes_per_second"}
    assert tiny["chat"]["chats"].keys() == {"alone", "beside"}
    assert tiny["memory"]["planned_for_keys_and_rows"] > 0


def test_what_exceeds_the_time_is_left_out_and_named(tmp_path: Path) -> None:
    result = measured(tmp_path / "gpu.json", "--seconds", "100000")
    names = [f"{live} live, eager, {captured}" for live in (1, 4) for captured in CAPTURES]
    assert result["left_out"].keys() == {f"tiny: {name}" for name in ("disk", "chat", *names)}
    assert result["shapes"]["tiny"]["paces"] == []
