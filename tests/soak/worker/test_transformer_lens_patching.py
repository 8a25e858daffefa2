"""Patch jobs against TransformerLens' own activation patching, cell by cell."""

import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.integration.worker.test_patching import CLEAN, CORRUPTED, MODEL, Patches
from tests.integration.worker.test_replays import identified
from tests.support import other_programs
from tests.support.architectures import ARCHITECTURES
from tests.support.availability import unavailable
from tests.support.servers import Unavailable
from tests.support.transformer_lens import PROGRAM
from worker.engine.engine import Engine
from worker.engine.model.load import load_model

if TYPE_CHECKING:
    from tests.integration.worker.conftest import Bench

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def python() -> Path:
    try:
        return other_programs.sae()
    except Unavailable as error:
        unavailable(str(error))


@pytest.mark.parametrize("name", ["gpt2", "qwen3"])
def test_every_cell_is_transformer_lens_own(
    bench: "Bench", shared: Path, python: Path, tmp_path: Path, name: str, *,
    monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests,
) -> None:  # fmt: skip
    folder = tmp_path / name
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(ARCHITECTURES[name].config()).save_pretrained(folder)
    AutoTokenizer.from_pretrained(shared / "models" / "stories260k").save_pretrained(folder)
    engine = Engine(load_model(str(folder), device="cpu", name=MODEL))
    here = Patches(replace(bench, engine=engine))
    identified(here.bench, monkeypatch)
    source = here.run((CLEAN, "clean", "a"), (CORRUPTED, "corrupted", "a"))
    for title, changes, points in (
        ("rows", {}, ["resid_pre", "attn_out", "mlp_out"]),
        ("heads", {"heads": "all"}, ["z"]),
        ("noise", {"direction": "noise"}, ["resid_pre", "attn_out", "mlp_out"]),
        ("difference", {"metric": "logit_difference", "against": 17}, ["resid_pre"]),
    ):
        with subtests.test(case=title):
            case: dict[str, Any] = changes
            (sample,) = here.patched(source, points=points, **case)
            pair, metric = here.read(sample)
            sides = [here.ids(pair, side) for side in ("clean", "corrupted")]
            if title == "noise":
                sides.reverse()
            out = tmp_path / f"{title}.npz"
            texts = [",".join(map(str, ids)) for ids in sides]
            against = -1 if pair.against is None else pair.against
            command = [
                str(python),
                str(PROGRAM),
                str(folder),
                *texts,
                str(pair.answer),
                str(against),
                str(out),
            ]
            quiet = {"HF_HUB_OFFLINE": "1", "PATH": os.environ["PATH"], "HOME": str(tmp_path)}
            done = subprocess.run([*command, *points], env=quiet, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr[-3000:]
            with np.load(out) as theirs:
                for place, point in enumerate(points):
                    np.testing.assert_allclose(metric[place], theirs[point], atol=1e-4)
