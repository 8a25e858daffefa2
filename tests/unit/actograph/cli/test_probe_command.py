"""`actograph probe FILE.npz`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actograph.cli.main import main


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    labels = np.arange(200) % 2
    path = tmp_path / "rows.npz"
    noise = generator.normal(size=(2, 200, 6)).astype(np.float32)
    noise[1, :, 0] += 3 * labels
    features: dict[str, Any] = {"features.mlp_in.0": noise[0], "features.mlp_in.1": noise[1]}
    texts = np.array(["a b", "c"] * 100)
    np.savez(path, **features, labels=labels, groups=np.arange(200) // 4, lengths=np.ones(200), texts=texts)
    return path


def test_scores_of_one_hook_are_a_json_object(
    rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = tmp_path / "weights.npz"
    arguments = ["--hook", "mlp_in.1", "--resamples", "50", "--transfer", rows, "--weights", weights]
    assert main(["probe", str(rows), *map(str, arguments)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["auroc_interval"][0] <= found["auroc"] <= found["auroc_interval"][1]
    assert found["auroc"] > 0.9
    assert found["groups"] == 50
    assert found["baselines"]["length"]["auroc"] == 0.5
    assert found["baselines"]["bag_of_words"]["auroc"] == 1.0
    assert found["transfer"]["auroc"] > 0.9
    with np.load(weights, allow_pickle=False) as written:
        assert np.abs(written["weights.mlp_in.1"]).argmax() == 0


def test_scores_of_all_hooks_are_a_curve(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", str(rows), "--resamples", "20", "--shuffles", "0", "--kind", "ridge"]) == 0
    curve = json.loads(capsys.readouterr().out)["hooks"]
    assert list(curve) == ["mlp_in.0", "mlp_in.1"]
    assert curve["mlp_in.1"]["auroc"] > curve["mlp_in.0"]["auroc"]


def test_files_that_hold_something_else_are_refused(
    rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def error(path: Path, *arguments: str) -> str:
        assert main(["probe", str(path), *arguments]) == 1
        said = capsys.readouterr()
        assert said.out == ""
        return said.err

    assert "it has: mlp_in.0, mlp_in.1" in error(rows, "--hook", "mlp_in.7")
    (tmp_path / "text.npz").write_text("no zip")
    assert "not an .npz file" in error(tmp_path / "text.npz")
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    assert "no array 'features'; the file has x" in error(tmp_path / "other.npz")
    np.savez(tmp_path / "objects.npz", features=np.zeros((3, 2)), labels=np.array([None, 1, 2]))
    assert "cannot be read" in error(tmp_path / "objects.npz")
    assert "No such file" in error(tmp_path / "missing.npz")
