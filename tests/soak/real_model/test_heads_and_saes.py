"""Induction heads through stored patterns, and an SAE that SAELens trains on stored rows, on a real model."""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actograph.client import Client
from tests.support import other_programs
from tests.support.availability import unavailable
from tests.support.isolated_python import REPO
from tests.support.saelens import PROGRAM
from tests.support.servers import Unavailable

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3600)]

PAGE = REPO / "docs/guides/heads.md"
BLOCK = re.compile(r"^<!-- run on smollm2 -->\n```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
ROW = re.compile(r"^layer (\d+) head (\d+) ([\d.]+)$", re.MULTILINE)


def test_the_induction_heads_of_the_page_are_found_and_need_a_repetition(
    client: Client, url: str, smollm2: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = PAGE.read_text(encoding="utf-8")
    (block,) = BLOCK.findall(text)
    (tmp_path / "smollm2").symlink_to(smollm2)
    monkeypatch.setenv("ACTOGRAPH_URL", url)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(block, str(PAGE), "exec"), names)
    scores, rows = names["scores"], ROW.findall(text)
    assert scores.shape == (30, 9) and len(rows) == 6
    for layer, head, score in rows:
        assert scores[int(layer), int(head)] == pytest.approx(float(score), abs=0.05)
    found = scores > 0.5
    assert found.sum() == 6 and not found[0].any(), "they need a layer before them"
    # the same words, none of them twice
    drawn = names["drawn"]
    once = ["".join((*drawn[line], *drawn[line + 1])) for line in (0, 2)]
    job = client.capture(once, capture={"points": ["q", "k"], "layers": "all"}, mode="prefill").wait()
    for session in job.sessions():
        now = names["now"]
        control = [session.attention(layer)[:, now, now - 23].mean(axis=1) for layer in range(30)]
        assert np.array(control)[found].max() < 0.1


def test_saelens_trains_on_rows_of_answers_and_the_service_encodes_as_it_does(
    client: Client, shared: Path, data_root: Path, tmp_path: Path
) -> None:
    try:
        python = other_programs.sae()
    except Unavailable as error:
        unavailable(str(error))
    hook = "resid_post.14"

    def ask(act: str, *folders: Path) -> None:
        command = [str(python), str(PROGRAM), act, hook, str(data_root / "saes"), *map(str, folders)]
        quiet = {"WANDB_MODE": "disabled", "HF_HUB_OFFLINE": "1", "PATH": os.environ["PATH"]}
        quiet |= {"HOME": str(tmp_path), "PYTHONPATH": str(REPO), "OMP_NUM_THREADS": "2"}
        done = subprocess.run(command, env=quiet, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]

    problems = shared / "data/gsm8k/test.jsonl"
    job = client.evaluate("gsm8k", dataset=problems, limit=24, max_tokens=32, capture=hook).wait()
    ask("train", *(one.download(tmp_path / "rows") for one in job.sessions()))
    folder = data_root / "saes" / "topk"
    sae = client.saes.create("res-14", path=str(folder))
    wanted = {"hooks": [hook], "saes": [{"sae": sae.id, "hook": hook, "top": 64}]}
    job = client.evaluate("gsm8k", dataset=problems, offset=24, limit=4, max_tokens=32, capture=wanted).wait()
    sessions = list(job.sessions())
    ask("encode", *(one.download(tmp_path / "encoded") for one in sessions))
    due = np.load(f"{folder}.npy")
    found = np.concatenate([one.latents("res-14").dense() for one in sessions])
    np.testing.assert_allclose(found, due, atol=1e-5 * due.max(), rtol=1e-5)
    # of problems that it never saw, more than the mean row tells
    rows = np.concatenate([one[hook][:] for one in sessions])
    assert 0 < (found > 0).sum(axis=1).mean() <= 9 and len(rows) == len(found)
