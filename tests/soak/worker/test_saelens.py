"""SAEs that SAELens trains on stored rows: the service encodes as SAELens does."""

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from actograph.client import open_folder
from actograph.contract.resources import JobStatus
from tests.support import other_programs
from tests.support.availability import unavailable
from tests.support.isolated_python import REPO
from tests.support.saelens import PROGRAM
from tests.support.saes import store_sae
from tests.support.servers import Unavailable

if TYPE_CHECKING:
    from tests.integration.worker.conftest import Bench

pytestmark = pytest.mark.integration

HOOKS = ["resid_post.0", "mlp_out.1"]
TEXTS = [
    f"Tom has {a} books and Mia has {b} books. How many do they have?" for a in (3, 34) for b in (5, 57, 90)
]


@pytest.fixture(scope="module")
def python() -> Path:
    try:
        return other_programs.sae()
    except Unavailable as error:
        unavailable(str(error))


def folders_of(bench: "Bench", capture: dict[str, Any]) -> list[Path]:
    """Folders of the sessions of a job that writes on, in the order of its samples."""
    inputs = [{"prompt": text} for text in TEXTS]
    job = bench.submit(inputs=inputs, capture=capture, sampling={"max_tokens": 24})
    bench.drain().look()
    assert bench.status(job) is JobStatus.COMPLETED
    root = bench.settings.home / "artifacts" / "sessions"
    return [root / str(sample.session_id) for sample in bench.samples(job)]


def test_encodings_are_saelens_own(
    bench: "Bench", python: Path, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    """Of every architecture and normalisation, at two hooks in one pass, in float32 to 1e-5."""

    def ask(act: str, hook: str, folders: list[Path]) -> None:
        command = [str(python), str(PROGRAM), act, hook, str(saes / hook), *map(str, folders)]
        quiet = {"WANDB_MODE": "disabled", "HF_HUB_OFFLINE": "1", "PATH": os.environ["PATH"]}
        quiet |= {"HOME": str(tmp_path), "PYTHONPATH": str(REPO), "OMP_NUM_THREADS": "2"}
        done = subprocess.run(command, env=quiet, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]

    saes = tmp_path / "data" / "saes"
    rows = folders_of(bench, {"hooks": HOOKS})
    wanted: list[dict[str, Any]] = []
    names: dict[str, tuple[str, Path]] = {}
    for place, hook in enumerate(HOOKS):
        ask("train", hook, rows)
        for folder in sorted(path.parent for path in (saes / hook).glob("*/cfg.json")):
            name = f"{folder.name}-{place}"
            names[name] = hook, folder
            root = bench.settings.data_roots[0]
            sae_id = store_sae(bench.database, bench.store, Path(root), name, str(folder))
            wanted.append({"sae": sae_id, "top": 4096})
    assert len(names) == 16
    stored = folders_of(bench, {"hooks": HOOKS, "saes": wanted})
    for hook in HOOKS:
        ask("encode", hook, stored)
    for name, (hook, folder) in names.items():
        with subtests.test(name):
            due = np.load(f"{folder}.npy")
            found = np.concatenate([open_folder(one).latents(name).dense() for one in stored])
            assert found.shape == due.shape and 0.005 < (due > 0).mean() < 0.95, "it shows something"
            size = max(1.0, float(due.max()))
            np.testing.assert_allclose(found, due, atol=1e-5 * size, rtol=1e-5)
            steps = [open_folder(one).tokens_of(hook) for one in stored]
            assert len(due) == sum(map(len, steps))
