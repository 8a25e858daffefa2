"""Proofs hold in every dtype and are not fooled by the scale of real activations."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from actograph.contract.errors import ModelRefused
from worker.engine.engine import Engine

pytestmark = pytest.mark.integration

EngineOf = Callable[[str], Engine]
Fresh = Callable[..., Engine]


@pytest.mark.covering(4)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision_changes_no_proof(
    architecture: str, dtype: torch.dtype, engine_of: EngineOf, fresh: Fresh
) -> None:
    wide = engine_of(architecture).structure
    model = fresh(architecture).model
    module: torch.nn.Module = model.hf
    module.to(dtype)
    structure = Engine(model).structure
    assert structure.dtype == str(dtype).removeprefix("torch.")
    assert {h: i.location for h, i in structure.hooks.items()} == {
        h: i.location for h, i in wide.hooks.items()
    }
    assert structure.proofs == wide.proofs
    assert structure.unavailable == wide.unavailable


@pytest.mark.parametrize("name", ["llama", "gemma2", "olmo2", "gpt_neox"])
def test_a_channel_thousands_of_times_larger_hides_nothing(
    name: str, engine_of: EngineOf, fresh: Fresh
) -> None:
    """Real models have such channels; measured at their scale every other number is rounding."""
    model = fresh(name).model
    module: torch.nn.Module = model.hf
    with torch.no_grad():
        weight: Any = model.hf.get_input_embeddings().weight
        weight[:, 5] = 3000.0
    module.to(torch.bfloat16)
    structure = Engine(model).structure
    assert structure.proofs == engine_of(name).structure.proofs


def test_a_layer_that_does_not_hand_on_what_it_gave_is_refused(
    fresh: Fresh, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = fresh("llama").model
    layer: Any = model.hf.get_submodule("model.layers.1")
    handle = layer.register_forward_pre_hook(lambda _m, args: (args[0] * 1.001, *args[1:]))
    try:
        with pytest.raises(ModelRefused, match="layer 1 does not take up what layer 0 gave"):
            Engine(model)
    finally:
        handle.remove()


def test_a_stream_that_is_not_the_sum_loses_resid_mid_with_the_reason(fresh: Fresh) -> None:
    model = fresh("llama").model
    norm: Any = model.hf.get_submodule("model.layers.1.post_attention_layernorm")
    handle = norm.register_forward_pre_hook(lambda _m, args: (args[0] * 1.01,))
    try:
        structure = Engine(model).structure
    finally:
        handle.remove()
    assert "resid_mid.1" not in structure.hooks
    assert {"resid_mid.0", "resid_mid.2"} <= set(structure.hooks)
    assert structure.unavailable["resid_mid.1"] == "no tensor was found that equals resid_pre + attn_out"
