"""What a model's structure lets be refused about a capture spec before anything runs."""

from typing import Any

import pytest

from actograph.contract.errors import InvalidRequest
from actograph.contract.job_specs import check_capture
from actograph.contract.models import HookInfo
from actograph.contract.specs import CaptureSpec
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
