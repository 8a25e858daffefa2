"""Planted outliers in arrays: both readings, boundaries, sums in any order, files and the command."""

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from scipy import stats

from actograph.analysis.experts import ExpertUse
from actograph.analysis.massive import MassiveCandidates
from actograph.analysis.moments import Moments
from actograph.analysis.outlier_features import OutlierCounts, OutlierRule
from actograph.analysis.outliers import outliers_of_arrays
from actograph.cli.main import main
from actograph.contract.errors import InvalidDataset

LAYERS, POSITIONS, WIDTH = 8, 100, 16


def planted() -> dict[str, np.ndarray]:
    """Feature 5 at six positions of layers 2 and 3; feature 9 at six positions of layer 1 alone."""
    draw = np.random.default_rng(0)
    found = {f"layer_{n}": draw.normal(size=(POSITIONS, WIDTH)).astype(np.float32) for n in range(LAYERS)}
    for name in ("layer_2", "layer_3"):
        found[name][:6, 5] = -6.0  # the boundary counts
    found["layer_1"][:6, 9] = 9.0
    return found


def test_both_readings_find_exactly_what_was_planted() -> None:
    found = outliers_of_arrays(planted())["outlier_features"]
    assert [(one["feature"], one["layers"], one["position_share"]) for one in found] == [(5, [2, 3], 0.06)]
    assert outliers_of_arrays(planted(), OutlierRule(positions="mean"))["outlier_features"] == []
    low = OutlierRule(positions="mean", position_share=0.015)
    (one,) = outliers_of_arrays(planted(), low)["outlier_features"]
    assert one["position_share"] == pytest.approx(2 * 0.06 / LAYERS)


def test_counts_equal_the_definition_in_any_order_of_parts() -> None:
    stacked = np.stack(list(planted().values()))
    hits = np.abs(stacked) >= 6.0
    for order in itertools.permutations(range(3)):
        whole = OutlierCounts(range(LAYERS), WIDTH)
        for part in order:
            rows = stacked[:, part * 40 : (part + 1) * 40]
            whole.add({layer: [rows[layer]] for layer in range(LAYERS)})
        assert np.array_equal(whole.shares("union"), hits.any(axis=0).mean(axis=0))
        np.testing.assert_allclose(whole.shares("mean"), hits.mean(axis=(0, 1)), rtol=1e-12)


def test_moments_equal_scipy_in_any_order_of_parts() -> None:
    values = np.random.default_rng(1).standard_t(5, size=10_000) * 3 + 40
    for order in itertools.permutations(range(4)):
        whole = Moments()
        for part in order:
            whole.add(values[part * 3000 : (part + 1) * 3000].astype(np.float64))
        assert whole.count == values.size
        assert whole.mean == pytest.approx(values.mean(), rel=1e-10)
        assert whole.variance == pytest.approx(values.var(), rel=1e-10)
        assert whole.kurtosis == pytest.approx(stats.kurtosis(values, fisher=False), rel=1e-8)
        assert whole.largest == np.abs(values).max()


def test_massive_activations_need_both_conditions() -> None:
    rows = np.full((10, 4), 0.5, np.float32)
    rows[3, 1], rows[4, 2], rows[5, 3] = -600.0, 499.0, 101.0
    found = MassiveCandidates()
    found.add(rows, 0, range(10))
    assert found.median == 0.5  # exact: a bfloat16 number
    (one,) = found.found("resid_post.0", 1000)
    assert (one.position, one.feature, one.value, one.ratio) == (3, 1, -600.0, 1200.0)
    rows[:] = 99.0
    again = MassiveCandidates()
    again.add(rows, 0, range(10))
    assert again.found("resid_post.0", 1.0) == []


def test_experts_are_counted_as_numpy_counts_them() -> None:
    draw = np.random.default_rng(2)
    chosen = np.stack([draw.permutation(6)[:2] for _ in range(50)])
    logits = draw.normal(size=(50, 6))
    use = ExpertUse()
    for part in (slice(30, None), slice(0, 30)):
        use.add_chosen(chosen[part])
        use.add_logits(logits[part])
    found = use.summary()
    assert found["load"] == [float((chosen == expert).any(axis=1).mean()) for expert in range(6)]
    odds = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    assert found["router_entropy"] == pytest.approx(stats.entropy(odds, axis=1).mean(), rel=1e-9)
    a, b = found["pairs"][0]["experts"]
    both = (chosen == a).any(axis=1) & (chosen == b).any(axis=1)
    assert found["pairs"][0]["share"] == float(both.mean())


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_the_command_reads_files(suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / f"layers.{suffix}"
    arrays = planted() | {"layer_7": np.full((POSITIONS, WIDTH), 0.25, np.float32)}
    arrays["layer_7"][4, 3] = 5000.0
    if suffix == "npz":
        np.savez(path, allow_pickle=False, **arrays)
    else:
        save_file(arrays, path)
    assert main(["analyse", "outliers", str(path), "--position-reading", "union"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(one["feature"], one["layers"]) for one in found["outlier_features"]] == [(5, [2, 3])]
    (massive,) = found["massive_activations"]
    assert (massive["array"], massive["position"], massive["feature"]) == ("layer_7", 4, 3)
    assert massive["ratio"] == 20000.0
    assert main(["analyse", "outliers", str(path), "--position-reading", "mean"]) == 0
    assert json.loads(capsys.readouterr().out)["outlier_features"] == []
    assert main(["analyse", "outliers", str(path), "--positions", "mean"]) == 1
    assert "--positions is for the sessions of jobs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"layer_0": np.zeros(3)}, "shape"),
        ({"layer_0": np.zeros((2, 3)), "layer_1": np.zeros((4, 3))}, "shapes"),
        ({"layer_0": np.zeros((2, 3)), "layer.0": np.zeros((2, 3))}, "another array"),
        ({"layer_0": np.array([["a"]])}, "numbers"),
        ({"layer_0.expert_indices": np.full((2, 3), -1)}, "integers"),
        ({"layer_0": np.zeros((2, 3)), "embed": np.zeros((2, 3))}, "'embed' has no layer number"),
        (
            {"layer_0": np.zeros((2, 3)), "token_ids": np.zeros((2, 3), int)},
            "'token_ids' has no layer number",
        ),
        ({"layer_0": np.zeros((2, 3)), "metadata": np.array("x")}, "'metadata' has no layer number"),
        ({"segment_ids": np.ones((2, 3), int)}, "no array holds the rows of a layer"),
        ({"layer_0": np.zeros((2, 3, 4)), "segment_ids": np.ones((2, 2), int)}, "must agree"),
        ({"layer_0": np.zeros((1, 2, 4)), "segment_ids": np.array([[2, 1]])}, "one after the other"),
        ({"layer_0": np.zeros((1, 2, 4)), "segment_ids": np.ones((1, 2))}, "segment_ids must be integers"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(arrays: dict[str, np.ndarray], says: str) -> None:
    with pytest.raises(InvalidDataset, match=says):
        outliers_of_arrays(arrays)


def test_the_layer_is_the_number_after_its_word() -> None:
    names = ["model.layers.3.mlp.up_proj.output", "blocks.3.hook_mlp_out", "gpt2.h.3.attn", "resid_post.3"]
    for name in names:
        arrays = {name: np.full((4, 3), 9.0), name.replace("3", "5"): np.zeros((4, 3))}
        assert {tuple(one["layers"]) for one in outliers_of_arrays(arrays)["outlier_features"]} == {(3,)}


def test_outliers_of_an_expert_are_those_of_its_tokens() -> None:
    rows = np.zeros((4, 3), np.float32)
    rows[1, 2], rows[3, 0] = -9.0, 5.9
    arrays = {"layer_1_mlp_in": rows, "layer_1_expert_indices": np.array([[0, 1], [1, 2], [0, 2], [3, 0]])}
    experts = outliers_of_arrays(arrays)["experts"]["1"]["outliers"]
    assert [(one["tokens"], one["share"]) for one in experts] == [(3, 0.0), (2, 0.5), (2, 0.5), (1, 0.0)]
    assert [one["largest"] for one in experts] == pytest.approx([5.9, 9, 9, 5.9])
    assert experts[1]["features"] == [{"feature": 2, "share": 0.5}]
    assert experts[0]["features"] == []
    arrays["layer_1_mlp_in"] = rows[:3]
    with pytest.raises(InvalidDataset, match="different tokens"):
        outliers_of_arrays(arrays)


def test_a_folder_of_files_is_read_like_one_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    generator = np.random.default_rng(0)
    arrays = {f"layer_{layer}_ln_attn": generator.normal(size=(9, 8)) * 3 for layer in range(4)}
    np.savez(tmp_path / "layers.npz", **arrays)
    (tmp_path / "layers").mkdir()
    for number, (name, array) in enumerate(arrays.items()):
        if number % 2:
            save_file({"x": array}, tmp_path / "layers" / f"{name}.safetensors")
        else:
            np.savez(tmp_path / "layers" / name, array)
    (tmp_path / "layers" / "notes.txt").write_text("of last week")
    found = []
    for place in ("layers.npz", "layers"):
        assert main(["analyse", "outliers", str(tmp_path / place)]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0] == found[1]
    assert found[0]["outlier_features"]
    np.savez(tmp_path / "layers" / "twice", layer_0_ln_attn=arrays["layer_0_ln_attn"], other=np.zeros((9, 8)))
    assert main(["analyse", "outliers", str(tmp_path / "layers")]) == 1
    assert "has an array 'layer_0_ln_attn', too" in capsys.readouterr().err
