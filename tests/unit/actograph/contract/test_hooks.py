"""Hook names: the grammar, the aliases and their resolution against a structure."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from actograph.contract import hooks
from actograph.contract.errors import UnknownHook
from actograph.contract.models import HookInfo, LayerHeads, ModelStructure
from tests.support.structures import model_structure


def structure(
    num_layers: int, locations: Mapping[str, str], module_locations: Sequence[str], **fields: Any
) -> ModelStructure:
    hooks = {name: HookInfo(location=at, width=8, dtype="float32") for name, at in locations.items()}
    return model_structure(hooks, num_layers=num_layers, module_locations=list(module_locations), **fields)


def llama(layers: int = 8) -> ModelStructure:
    locations = {"embed": "model.embed_tokens.output"}
    order = ["model.embed_tokens.output"]
    for i in range(layers):
        layer = f"model.layers.{i}"
        points = {
            "resid_pre": f"{layer}.input",
            "attn_in": f"{layer}.input_layernorm.output",
            "attn_out": f"{layer}.self_attn.output",
            "resid_mid": f"{layer}.post_attention_layernorm.input",
            "mlp_in": f"{layer}.post_attention_layernorm.output",
            "mlp_out": f"{layer}.mlp.output",
            "resid_post": f"{layer}.output",
        }
        locations |= {f"{point}.{i}": location for point, location in points.items()}
        order += [*list(points.values())[:5], f"{layer}.mlp.up_proj.output", *list(points.values())[5:]]
    locations |= {"final_norm": "model.norm.output", "logits": "lm_head.output"}
    order += ["model.norm.output", "lm_head.output"]
    missing = dict.fromkeys(("router_logits", "expert_indices", "expert_weights"), "not a mixture of experts")
    return structure(layers, locations, order, unavailable=missing)


def test_every_alias_means_its_hook(subtests: pytest.Subtests) -> None:
    for name, hook in [
        ("resid_post.3", "resid_post.3"),
        ("resid_post.03", "resid_post.3"),
        ("embed", "embed"),
        ("model.layers[3].input_layernorm.output", "attn_in.3"),
        ("model.layers.3.input_layernorm.output", "attn_in.3"),
        ("model.layers.3.input", "resid_pre.3"),
        ("model.layers[3].output", "resid_post.3"),
        ("model.layers[3].self_attn.output[0]", "attn_out.3"),
        ("model.layers.3.mlp.up_proj.output.0", "model.layers.3.mlp.up_proj.output"),
        ("model.norm.output", "final_norm"),
        ("blocks.3.hook_resid_post", "resid_post.3"),
        ("blocks.3.hook_resid_mid", "resid_mid.3"),
        ("blocks.3.hook_in", "resid_pre.3"),
        ("blocks.3.attn.hook_out", "attn_out.3"),
        ("hook_embed", "embed"),
        ("layers_output[3]", "resid_post.3"),
        ("attentions_output[3]", "attn_out.3"),
        ("token_embeddings", "embed"),
        ("layer_3_input_layernorm_output", "attn_in.3"),
        ("layer_3_post_attention_layernorm_output", "mlp_in.3"),
        ("layer_3_mlp_output", "mlp_out.3"),
        ("layer_3_output", "resid_post.3"),
        ("model.layers[3].mlp.up_proj.output", "model.layers.3.mlp.up_proj.output"),
    ]:
        with subtests.test(name=name, hook=hook):
            assert hooks.resolve(name, llama()) == hook


def test_an_unknown_name_is_refused_and_says_what_is_near(subtests: pytest.Subtests) -> None:
    for name, words in [
        ("resid_post.8", "layers 0 to 7"),
        ("blocks.99.hook_resid_post", "layers 0 to 7"),
        ("resid_pst.3", "resid_post.3"),
        ("model.layers.3.input_layernom.output", "input_layernorm"),
        ("router_logits.1", "not a mixture of experts"),
        ("model.layers.3.__class__", "no such hook"),
        ("__import__('os').system('true')", "no such hook"),
        ("resid_post", "needs the layer"),
        ("resid_post.-1", "no such hook"),
        ("resid_post.{}", "no such hook"),
        ("", "no such hook"),
    ]:
        with (
            subtests.test(name=name, words=words),
            pytest.raises(UnknownHook, match=words.replace("(", r"\(")),
        ):
            hooks.resolve(name, llama())


def test_layers_are_chosen_by_list_slice_or_default(subtests: pytest.Subtests) -> None:
    for layers, chosen in [
        (None, [2, 4, 6]),
        ("all", list(range(8))),
        ("2:8:2", [2, 4, 6]),
        (":3", [0, 1, 2]),
        ("6:", [6, 7]),
        ([5, 1, 5], [1, 5]),
    ]:
        with subtests.test(layers=layers, chosen=chosen):
            assert hooks.select_layers(layers, 8) == chosen


def test_expansion_joins_points_and_hooks_in_execution_order_without_repeats() -> None:
    expanded = hooks.expand(
        ["resid_post", "attn_in", "logits"],
        [4, 1],
        ["blocks.1.hook_resid_post", "embed", "mlp_out.0"],
        llama(),
    )
    assert expanded == [
        "embed", "mlp_out.0", "attn_in.1", "resid_post.1", "attn_in.4", "resid_post.4", "logits",
    ]  # fmt: skip


def test_nothing_named_means_the_residual_stream_at_the_default_layers() -> None:
    assert hooks.expand([], None, [], llama()) == ["resid_post.2", "resid_post.4", "resid_post.6"]


def test_a_point_that_some_layers_lack_is_taken_where_it_is_and_refused_by_number() -> None:
    table = llama(4)
    routers = {f"router_logits.{i}": f"model.layers.{i}.mlp.gate.output" for i in (1, 2, 3)}
    order = [m for m in table.module_locations if not m.endswith(".mlp.up_proj.output")]
    reason = "layer 0 is dense"
    mixed = structure(
        4,
        {**table.locations, **routers},
        [*order, *routers.values()],
        unavailable={"router_logits.0": reason},
    )
    assert hooks.expand(["router_logits"], "all", [], mixed) == [
        "router_logits.1",
        "router_logits.2",
        "router_logits.3",
    ]
    assert hooks.expand(["router_logits"], ":2", [], mixed) == ["router_logits.1"]
    assert hooks.expand(["router_logits", "mlp_in"], [1], [], mixed) == ["mlp_in.1", "router_logits.1"]
    for points, layers, names in (
        (["router_logits"], [0, 1], []),
        (["router_logits"], ":1", []),
        ([], None, ["router_logits.0"]),
    ):
        with pytest.raises(UnknownHook, match=f"^router_logits.0: {reason}$"):
            hooks.expand(points, layers, names, mixed)
    with pytest.raises(UnknownHook, match="layers 0 to 3"):
        hooks.resolve("router_logits.4", mixed)


def test_i_in_a_hook_stands_for_each_of_the_layers(subtests: pytest.Subtests) -> None:
    path, up = "model.layers.{i}.mlp.up_proj.output", "model.layers.{}.mlp.up_proj.output"
    cases: list[tuple[list[str], Any, list[str]]] = [
        ([path], [1, 3], [up.format(1), up.format(3)]),
        ([path], None, [up.format(2), up.format(4), up.format(6)]),
        (["model.layers[{i}].output"], "1:3", ["resid_post.1", "resid_post.2"]),
        (["blocks.{i}.hook_resid_post", "embed"], [0], ["embed", "resid_post.0"]),
    ]
    for names, layers, due in cases:
        with subtests.test(names=names, layers=layers):
            assert hooks.expand([], layers, names, llama()) == due
    for name, says in [
        ("model.layers.{n}.output", "write {i}"),
        ("model.layers.{i}.mpl.output", "no such"),
        ("resid_post", r"such as resid_post\.0; a capture takes several as resid_post\.{i}"),
        ("resid_post@all", r"needs the layer, such as resid_post\.0"),
    ]:
        with subtests.test(name=name), pytest.raises(UnknownHook, match=says):
            hooks.expand([], "all", [name], llama())


def test_names_of_queries_and_keys_say_whether_they_are_rotated(subtests: pytest.Subtests) -> None:
    """TransformerLens' `hook_q` is before the rotation, `hook_rot_q` after it."""
    at = {"q": "query", "k": "key", "v": "value"}
    locations = {f"{point}.{i}": f"layers.{i}.attn.{side}" for point, side in at.items() for i in range(2)}
    locations |= {f"z.{i}": f"layers.{i}.attn.o_proj.input" for i in range(2)}
    heads = LayerHeads(heads=2, key_heads=1, width=4, scale=0.5)
    for is_rotated in (True, False):
        attention = dict.fromkeys(range(2), heads.model_copy(update={"is_rotated": is_rotated}))
        known = structure(2, locations, list(locations.values()), attention=attention)
        for name, hook in [
            ("blocks.1.attn.hook_rot_q", "q.1"),
            ("blocks.1.attn.hook_rot_k", "k.1"),
            ("blocks.1.attn.hook_v", "v.1"),
            ("blocks.1.attn.v.hook_out", "v.1"),
            ("blocks.1.attn.hook_z", "z.1"),
            ("blocks.1.attn.o.hook_in", "z.1"),
        ]:
            with subtests.test(name, is_rotated=is_rotated):
                assert hooks.resolve(name, known) == hook
                assert name in hooks.names_in(known, hook)
        for name, hook in [
            ("blocks.1.attn.hook_q", "q.1"),
            ("blocks.1.attn.hook_k", "k.1"),
            ("blocks.1.attn.q.hook_out", "q.1"),
        ]:
            with subtests.test(name, is_rotated=is_rotated):
                assert (name in hooks.names_in(known, hook)) is not is_rotated
                if is_rotated:
                    with pytest.raises(UnknownHook, match=f"as {hook}, or blocks.1.attn.hook_rot_"):
                        hooks.resolve(name, known)
                else:
                    assert hooks.resolve(name, known) == hook


def test_hooks_that_are_not_stored(subtests: pytest.Subtests) -> None:
    """The error has the nearest name, or what is stored: the layers of a point that is."""
    stored = [f"resid_post.{layer}" for layer in range(30)] + ["mlp_in.3", "mlp_in.7", "logits"]
    for name, says in [
        ("resid_pst.12", "no tensor resid_pst.12 is stored. Did you mean 'resid_post.12'?"),
        ("resid_pst", "no tensor resid_pst is stored. Did you mean 'resid_post'?"),
        (
            "resid_post.45",
            "is stored; stored: resid_post.0 to resid_post.29, mlp_in.3, mlp_in.7, logits",
        ),
        ("blocks.45.hook_resid_post", "stored: resid_post.0 to resid_post.29"),
        ("q", "stored: resid_post.0 to resid_post.29"),
    ]:
        with subtests.test(name):
            assert says in hooks.not_stored(name, stored)
    assert hooks.not_stored("embed", []) == "no tensor embed is stored; no hook is"
    with pytest.raises(UnknownHook, match="Did you mean 'logits'"):
        hooks.matching(stored, ["logit"])
