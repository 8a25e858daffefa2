"""Names in a results folder, whatever jobs, models and conditions are called."""

import pytest

from actograph.contract.hooks import flat_name
from storage.results.export.of_condition import safe_part


def test_no_name_leads_out_of_its_folder(subtests: pytest.Subtests) -> None:
    for text, part in [
        ("Qwen/Qwen3-0.6B", "Qwen__Qwen3-0.6B"),
        ("/models/tiny", "__models__tiny"),
        ("../../etc", "__..__etc"),
        ("..", "model"),
        (".hidden", "hidden"),
        ("", "model"),
        ('a"<b>:|?*[c]', "a__b__c__"),
        ("C:\\models", "C__models"),
        ("ü\0\n ", "__"),
    ]:
        with subtests.test(text=text, part=part):
            assert safe_part(text, "model") == part


def test_hooks_have_flat_names(subtests: pytest.Subtests) -> None:
    for hook, flat in [
        ("attn_in.8", "layer_8_input_layernorm_output"),
        ("mlp_in.12", "layer_12_post_attention_layernorm_output"),
        ("resid_mid.3", "layer_3_post_attention_layernorm_input"),
        ("resid_post.0", "layer_0_output"),
        ("router_logits.3", "layer_3_router_logits"),
        ("embed", "embed"),
        ("model.layers.0.mlp.up_proj.output", "model_layers_0_mlp_up_proj_output"),
        ("resid_post.3.mean", "resid_post_3_mean"),
    ]:
        with subtests.test(hook=hook, flat=flat):
            assert flat_name(hook) == flat
