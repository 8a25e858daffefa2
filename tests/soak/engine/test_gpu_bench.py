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
PLAIN_HOOKS, LM_EVAL = "plain hooks, all layers x 2", "lm-eval's hf backend, nothing kept"


def measured(file: Path, *words: str) -> Any:
    command = [sys.executable, "-m", "bench.gpu", "--device", "cpu", "--shapes", "tiny", "--live", "1", "4"]
    ended = subprocess.run(
        [*command, *words, "--json", str(file)], cwd=REPO, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return json.loads(file.read_text())


def test_every_case_is_measured(tmp_path: Path) -> None:
    result = measured(tmp_path / "gpu.json", "--seconds", "1")
    rivals = result["shapes"]["tiny"]["rivals"]
    assert result["marks"] == []
    # lm-eval may not be installed; whoever is measured has figures
    assert result["left_out"].keys() <= {f"tiny: {LM_EVAL}"}
    assert rivals.keys() == {PLAIN_HOOKS, LM_EVAL}
    for name, one in rivals.items():
        assert one.get("generated", 0) > 0 or f"tiny: {name}" in result["left_out"], one
    tiny = result["shapes"]["tiny"]
    found = {(one["live"], one["replayed"], one["captured"]) for one in tiny["paces"]}
    assert found == {(live, False, captured) for live in (1, 4) for captured in CAPTURES}
    # how much was done in the time is the machine's affair
    assert all(one["row_bytes_per_second"] == 0 for one in tiny["paces"] if one["captured"] == "nothing")
    assert tiny["disk"].keys() == {"bytes", "bytes_per_second"}
    assert tiny["chat"]["chats"].keys() == {"alone", "beside"}
    assert tiny["memory"]["planned"] > 0 and tiny["memory"]["peak_beyond_the_model"] > 0
    # a CPU replays nothing: two eager runs have the same bits
    compared = [(one["captured"], one["rows_of_a_pass"]) for one in tiny["equality"]]
    assert compared == [(captured, rows) for captured in CAPTURES for rows in (1, 2, 4)]
    for one in tiny["equality"]:
        assert one["same_tokens"] == one["same_rows"] == one["requests"] == one["rows_of_a_pass"]


def test_what_exceeds_the_time_is_left_out_and_named(tmp_path: Path) -> None:
    result = measured(tmp_path / "gpu.json", "--seconds", "100000")
    names = [f"{live} live, eager, {captured}" for live in (1, 4) for captured in CAPTURES]
    others = ("disk", "chat", "equality", "rivals")
    assert result["left_out"].keys() == {f"tiny: {name}" for name in (*others, *names)}
    assert result["shapes"]["tiny"]["paces"] == []
