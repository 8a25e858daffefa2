"""`actograph compare` and `actograph lens` on files."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actograph.analysis.lens.checkpoint import Checkpoint
from actograph.cli.main import main
from actograph.demo import MODEL_DIR


def test_compare_prints_every_common_hook(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    generator = np.random.default_rng(0)
    first, second, vectors = (tmp_path / f"{name}.npz" for name in ("first", "second", "vectors"))
    rows, problems = generator.normal(size=(30, 4)), np.arange(30)
    np.savez(first, problems=problems, a=rows, b=rows, alone=rows)
    np.savez(second, problems=problems[::-1], a=rows[::-1] + 5, b=generator.normal(size=(30, 4)))
    arguments = [str(first), str(second), "--permutations", "99", "--vectors", str(vectors)]
    assert main(["compare", *arguments]) == 0
    found = json.loads(capsys.readouterr().out)["hooks"]
    assert list(found) == ["a", "b"]
    assert found["a"]["p_value"] == 0.01
    assert found["a"]["difference_norm"] == pytest.approx(10)
    with np.load(vectors, allow_pickle=False) as written:
        assert written["a"] == pytest.approx(np.full(4, 5.0))
    assert main(["compare", *arguments, "--hook", "alone"]) == 1
    assert "it has: a, b" in capsys.readouterr().err


def test_lens_prints_a_line_per_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = Checkpoint(MODEL_DIR)
    embedding = checkpoint.unembedding.rows(0, checkpoint.unembedding.shape[0])
    path = tmp_path / "rows.npz"
    rows: dict[str, Any] = {"resid_post.1": embedding[[5, 9]] * 100, "mlp_in.0": embedding[:1]}
    np.savez(path, **rows)
    assert main(["lens", str(path), "--model", str(MODEL_DIR), "--top", "2"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["hook"], line["row"], len(line["top"])) for line in lines] == [
        ("resid_post.1", 0, 2),
        ("resid_post.1", 1, 2),
    ]
    assert all(isinstance(one["piece"], str) for line in lines for one in line["top"])
    assert main(["lens", "nothing.txt", "--model", str(MODEL_DIR)]) == 1
    assert "neither a session's folder nor an .npz file" in capsys.readouterr().err
