"""What a model's structure lets be refused about a capture spec before anything runs."""

from typing import Any

import pytest

from actograph.contract.errors import InvalidRequest
from actograph.contract.head_columns import columns_of
from actograph.contract.job_options import features_of
from actograph.contract.job_specs import check_capture
from actograph.contract.models import HookInfo, LayerHeads
from actograph.contract.row_selection import HeadFeatures
from actograph.contract.specs import CaptureSpec
from evals.plans import bytes_per_token
from tests.support.structures import model_structure

STRUCTURE = model_structure(
    {
        "resid_post.0": HookInfo(location="model.layers.0.output", width=8, dtype="float32"),
        "router_logits.0": HookInfo(location="model.layers.0.mlp.gate.output", width=4, dtype="float32"),
        "expert_indices.0": HookInfo(location="model.layers.0.mlp.gate.output", width=2, dtype="int64"),
    }
)


@pytest.mark.parametrize("features", [{"first": 5}, {"indices": [1, 4]}])
def test_a_column_beyond_a_hook_is_refused_with_its_name_and_width(features: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"router_logits\.0 has 4 features .*feature 4") as refused:
        check_capture(CaptureSpec(features=features), ["resid_post.0", "router_logits.0"], STRUCTURE)
    assert refused.value.param == "capture.features"


def test_columns_of_heads_are_those_of_hooks_with_heads(subtests: pytest.Subtests) -> None:
    def hook(width: int) -> HookInfo:
        return HookInfo(location="model.layers.0.self_attn.query", width=width, dtype="float32")

    hooks = {"q.0": hook(8), "k.0": hook(4), "q.1": hook(16), "resid_post.0": hook(8)}
    narrow = LayerHeads(heads=4, key_heads=2, width=2, scale=1.0)
    wide = narrow.model_copy(update={"width": 4})
    structure = model_structure(hooks).model_copy(update={"attention": {0: narrow, 1: wide}})
    assert columns_of(HeadFeatures(heads=[3, 0]), "q.0", structure, "") == (6, 7, 0, 1)
    for heads, names, said in [
        ([2], ["q.0", "k.0"], r"k\.0 has key heads 0 to 1; the spec asks for head 2"),
        ([4], ["q.0"], r"q\.0 has heads 0 to 3"),
        ([0], ["resid_post.0"], r"resid_post\.0 has no heads"),
        ([1], ["q.0", "q.1"], r"a head of q\.1 has 4 columns, one of q\.0 2"),
    ]:
        spec = CaptureSpec.model_validate({"features": {"heads": heads}})
        with subtests.test(said), pytest.raises(InvalidRequest, match=said) as refused:
            check_capture(spec, names, structure)
        assert refused.value.param == "capture.features"
    spec = CaptureSpec.model_validate({"features": {"heads": [1, 0]}})
    check_capture(spec, ["q.0", "k.0"], structure)
    assert bytes_per_token(structure, ["q.0", "k.0"], "float32", spec.features) == 2 * 2 * 2 * 4
    assert features_of("heads:0,5") == {"heads": [0, 5]}
    for text in ("first:heads:0", "head:0", "heads:"):
        with pytest.raises(InvalidRequest, match="is not valid"):
            features_of(text)


def test_indices_are_not_summed_up(subtests: pytest.Subtests) -> None:
    for spec, field in [
        ({"reduce": "mean"}, "reduce"),
        ({"reduce": "max"}, "reduce"),
        ({"stats": True}, "stats"),
    ]:
        with subtests.test(spec=spec, field=field):
            with pytest.raises(
                InvalidRequest, match=r"expert_indices\.0 holds integers \(int64\)"
            ) as refused:
                check_capture(CaptureSpec(**spec), ["resid_post.0", "expert_indices.0"], STRUCTURE)
            assert refused.value.param == f"capture.{field}"


def test_a_job_chooses_its_engine_but_never_streams_a_model_that_needs_traces() -> None:
    assert STRUCTURE.engine_for("auto") == STRUCTURE.engine_for("streaming") == ("streaming", None)
    assert STRUCTURE.engine_for("traced") == ("traced", "the job asks for it")
    unsuited = STRUCTURE.model_copy(update={"engine": "traced", "engine_reason": "no causal mask"})
    assert unsuited.engine_for("auto") == ("traced", "no causal mask")
    with pytest.raises(InvalidRequest, match="no causal mask; use engine auto or traced") as refused:
        unsuited.engine_for("streaming")
    assert refused.value.param == "engine"
