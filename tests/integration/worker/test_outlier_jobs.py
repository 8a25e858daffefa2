"""Outliers planted in the weights of an OLMoE-shaped model are found from extraction to result."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import OlmoeConfig, OlmoeForCausalLM

from actograph.contract.specs import OutliersSpec
from tests.support.analysis_bench import AnalysisBench, analysis_bench

pytestmark = pytest.mark.integration

LAYERS, WIDTH, EXPERTS, CHOSEN = 16, 32, 64, 8
FEATURE, PLANTED = 7, list(range(8))
#: one layer of 16 is too few for an outlier feature
ROUTED, EXPERT_FEATURE = 3, 5
MODEL = "olmoe-shaped"
POINTS = ["attn_in", "mlp_in", "router_logits", "expert_indices"]
TEXTS = ["one and two are three", "Tom has 34 books and Mia has 57 books.", "How many are left?"]


@pytest.fixture(scope="module")
def checkpoint(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model; the attention norm of its first eight layers enlarges one feature.

    A root mean square norm of 32 features gives no number above 5.7, so nothing else is an outlier.
    """
    folder, source = tmp_path_factory.mktemp("model"), shared / "models" / "tiny-qwen3"
    torch.manual_seed(0)
    vocabulary = json.loads((source / "config.json").read_text())["vocab_size"]
    model = OlmoeForCausalLM(
        OlmoeConfig(
            vocab_size=vocabulary,
            hidden_size=WIDTH,
            intermediate_size=16,
            num_hidden_layers=LAYERS,
            num_attention_heads=4,
            num_key_value_heads=4,
            num_experts=EXPERTS,
            num_experts_per_tok=CHOSEN,
            max_position_embeddings=256,
        )
    )
    with torch.no_grad():
        for layer in PLANTED:
            model.model.layers[layer].input_layernorm.weight[FEATURE] = 60.0
        model.model.layers[ROUTED].post_attention_layernorm.weight[EXPERT_FEATURE] = 12.0
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(source / name, folder)
    return folder


@pytest.fixture(scope="module")
def bench(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AnalysisBench]:
    with analysis_bench(tmp_path_factory.mktemp("home"), MODEL, checkpoint) as made:
        yield made


@pytest.fixture(scope="module")
def source(bench: AnalysisBench) -> str:
    return bench.extract(TEXTS, POINTS)


def outliers(bench: AnalysisBench, source: str, **fields: Any) -> dict[str, Any]:
    spec = OutliersSpec.model_validate({"kind": "outliers", "jobs": [source]} | fields)
    results = bench.analyse(spec)
    assert results.analysis is not None, results
    (found,) = results.analysis["jobs"]
    return dict(found)


def test_the_planted_feature_is_found_exactly_in_both_readings(bench: AnalysisBench, source: str) -> None:
    stacked = np.stack([bench.stored(source, f"attn_in.{layer}") for layer in range(LAYERS)])
    hits = np.abs(stacked) >= 6.0
    shares = {"union": hits.any(axis=0).mean(axis=0), "mean": hits.mean(axis=(0, 1))}
    assert shares["mean"][FEATURE] <= 0.5 < shares["union"][FEATURE]
    for positions, share in shares.items():
        (one,) = outliers(bench, source, positions=positions)["outlier_features"]
        assert (one["points"], one["feature"], one["layers"]) == ("attn_in", FEATURE, PLANTED)
        assert one["position_share"] == pytest.approx(share[FEATURE], rel=1e-9)
    strict = {"position_share": 0.51}
    assert len(outliers(bench, source, positions="union", **strict)["outlier_features"]) == 1
    assert outliers(bench, source, positions="mean", **strict)["outlier_features"] == []


def test_the_use_of_experts_equals_numpy(bench: AnalysisBench, source: str) -> None:
    found = outliers(bench, source)["experts"]
    assert set(found) == {str(layer) for layer in range(LAYERS)}
    chosen, logits = (bench.stored(source, f"{point}.3") for point in ("expert_indices", "router_logits"))
    load = [(chosen == expert).any(axis=1).mean() for expert in range(chosen.max() + 1)]
    np.testing.assert_allclose(found["3"]["load"][: len(load)], load)
    odds = np.exp(logits.astype(np.float64))
    odds /= odds.sum(axis=1, keepdims=True)
    assert found["3"]["router_entropy"] == pytest.approx(-(odds * np.log(odds)).sum(axis=1).mean(), rel=1e-5)


def test_outliers_of_each_expert_equal_numpy(bench: AnalysisBench, source: str) -> None:
    found = outliers(bench, source)["experts"]
    chosen, inputs = (bench.stored(source, f"{point}.{ROUTED}") for point in ("expert_indices", "mlp_in"))
    over = np.abs(inputs) >= 6.0
    assert 0 < over.any(axis=1).mean() < 1
    for expert, one in enumerate(found[str(ROUTED)]["outliers"]):
        tokens = (chosen == expert).any(axis=1)
        assert (one["expert"], one["tokens"]) == (expert, tokens.sum())
        hits = over[tokens][:, EXPERT_FEATURE].sum()
        if tokens.any():
            assert one["share"] == pytest.approx(hits / tokens.sum())
            assert one["largest"] == pytest.approx(np.abs(inputs[tokens]).max())
        features = [{"feature": EXPERT_FEATURE, "share": hits / max(1, tokens.sum())}] if hits else []
        assert one["features"] == features
    others = [one for layer, use in found.items() if layer != str(ROUTED) for one in use["outliers"]]
    assert len(others) == (LAYERS - 1) * EXPERTS
    assert not any(one["features"] for one in others)
