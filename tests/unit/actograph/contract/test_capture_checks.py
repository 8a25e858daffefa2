"""What a model's structure lets be refused about a capture spec before anything runs."""

from typing import Any

import pytest

from actograph.contract.capture_checks import check_capture
from actograph.contract.errors import InvalidRequest
from actograph.contract.resources import HookInfo, ModelStructure
from actograph.contract.specs import CaptureSpec

STRUCTURE = ModelStructure(
    model="m", architecture="A", num_layers=1, hidden_size=8, vocab_size=9, context_length=64,
    dtype="float32", device="cpu", num_parameters=1, chat_template=False, eos_token_ids=[1],
    hooks={
        "resid_post.0": HookInfo(location="model.layers.0.output", width=8, dtype="float32"),
        "router_logits.0": HookInfo(location="model.layers.0.mlp.gate.output", width=4, dtype="float32"),
    },
    module_locations=[],
)  # fmt: skip


@pytest.mark.parametrize("features", [{"first": 4}, {"indices": [3, 0]}, None])
def test_columns_that_every_hook_has_are_accepted(features: Any) -> None:
    check_capture(CaptureSpec(features=features), ["resid_post.0", "router_logits.0"], STRUCTURE)


@pytest.mark.parametrize("features", [{"first": 5}, {"indices": [1, 4]}])
def test_a_column_beyond_a_hook_is_refused_with_its_name_and_width(features: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"router_logits\.0 has 4 features .*feature 4") as refused:
        check_capture(CaptureSpec(features=features), ["resid_post.0", "router_logits.0"], STRUCTURE)
    assert refused.value.param == "capture.features"
