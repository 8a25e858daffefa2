"""A short run of the chaos program on real GSM8K problems: nothing is lost, doubled or different."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.chaos_faults import FAULTS as FAULT_KINDS

pytestmark = [pytest.mark.e2e, pytest.mark.integration]

REPO = Path(__file__).resolve().parents[2]
FAULTS = 10
PROBLEMS = 400


@pytest.mark.skipif(sys.platform != "linux", reason="children are killed with their parents by Linux's means")
def test_ten_faults_in_mid_drain_change_nothing(shared: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "bench.chaos", "--model", shared / "models" / "tiny-qwen3"),
            *("--problems", shared / "data" / "gsm8k" / "test.jsonl", "--limit", str(PROBLEMS)),
            *("--faults", str(FAULTS), "--seed", "19", "--home", tmp_path / "home"),
            *("--json", tmp_path / "chaos.json"),
        ],
        cwd=REPO,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    logs = "\n".join(f"== {p.name}\n{p.read_text()[-2000:]}" for p in (tmp_path / "home/logs").glob("*.log"))
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{logs}"
    assert "still waiting for ;" not in done.stderr
    report = json.loads((tmp_path / "chaos.json").read_text())
    assert report["clean"]
    assert len(report["faults"]) == FAULTS
    assert set(report["by_kind"]) == set(FAULT_KINDS), "this seed has every kind of fault"
    audit = report["audit"]
    assert audit["samples"] == audit["sessions"] == report["jobs"] * PROBLEMS
    # work was really lost with the workers, and no more of it than they held
    assert 0 < audit["repeats"] <= sum(fault["in_hand"] for fault in report["faults"])
