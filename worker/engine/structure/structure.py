"""Find a model's hook points by walking its modules, and verify them on a dry forward pass.

No architecture is known by name. The decoder layers are the list of modules with the config's number of
layers. Inside a layer, attention and MLP are recognised by their class, and every point around them by
comparing tensors: the "residual stream between attention and MLP" is a tensor that equals
`resid_pre + attn_out`, whatever its module is called.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from actograph.contract import hooks as grammar
from actograph.contract.errors import ModelRefused
from actograph.contract.model_loads import with_savepoints
from actograph.contract.models import HookInfo, LayerHeads, LocationInfo, ModelStructure
from worker.engine.locations import ModelHooks, place_of
from worker.engine.model import group
from worker.engine.model.loaded import LoadedModel
from worker.engine.model.positions import position_switch
from worker.engine.structure import moe
from worker.engine.structure.comparison import same
from worker.engine.structure.dry_forward import DryForward, Visit, dry_forward
from worker.engine.structure.heads import find_heads, prove_patterns
from worker.engine.structure.layer_points import Findings, find_in_layer
from worker.engine.structure.rehearsal import Rehearsal, rehearse
from worker.text.tool_template import offers_tools

_NO_ROUTER = "no module below an MLP puts out scores, ids and weights of experts for each token"

_SHARED = "each of {} ranks has a part of this tensor; load the model without tensor parallelism to read it"


def discover(model: LoadedModel) -> ModelHooks:
    """Find and verify the hook points of `model`.

    A point that cannot be verified on every layer goes to `unavailable` with the reason.

    Raises:
        ModelRefused: the decoder layers, the embedding or the head cannot be found; the residual stream does
            not pass from layer to layer; or it differs when the model runs as jobs run it.
    """
    layers_path = model.layers_path
    forward = dry_forward(model)
    visits = forward.visits
    by_location = {v.location: v for v in visits}
    found = Findings()
    layer_count = len(_submodule(model, layers_path))
    _find_stream(model, layers_path, layer_count, by_location, found)
    for layer in range(layer_count):
        find_in_layer(model, f"{layers_path}.{layer}", layer, by_location, found)
    find_heads(model, layers_path, layer_count, forward, found)
    _find_routers(model, layer_count, forward, found)
    _find_ends(model, layers_path, layer_count, visits=by_location, logits=forward.logits, found=found)
    found.missing.update(dict.fromkeys(forward.shared, _SHARED.format(group.size())))
    if not group.agree("\n".join(visit.location for visit in visits)):
        raise ModelRefused(
            f"{model.name}: its ranks find different hook points; set ACTOGRAPH_TENSOR_PARALLEL to 1"
        )
    rehearsal = rehearse(model, forward)
    _drop_faulty(model, rehearsal, found)
    attention = prove_patterns(model, forward, found)
    _drop_partial(layer_count, found)
    visits = [v for v in visits if v.location not in rehearsal.faults]
    structure = _structure(model, layer_count, replace(forward, visits=visits), found, attention)
    first: dict[tuple[Any, ...], str] = {}
    same_as = {v.location: first.setdefault(v.identity, v.location) for v in visits}
    return ModelHooks(
        model=model,
        structure=structure,
        same_as=same_as,
        flat=frozenset(v.location for v in visits if v.flat),
        widths={v.location: v.width for v in visits},
    )


def _submodule(model: LoadedModel, path: str) -> Any:
    return model.hf.get_submodule(path)


def _is_moe(model: LoadedModel) -> bool:
    config = model.text_config
    fields = ("num_experts", "num_local_experts", "n_routed_experts")
    return any((getattr(config, name, 0) or 0) > 1 for name in fields)


def _find_stream(
    model: LoadedModel,
    layers_path: str,
    layer_count: int,
    visits: Mapping[str, Visit],
    found: Findings,
) -> None:
    for layer in range(layer_count):
        for point, side in (("resid_pre", "input"), ("resid_post", "output")):
            location = f"{layers_path}.{layer}.{side}"
            if location not in visits:
                raise ModelRefused(
                    f"{model.name}: {location} carries no hidden state of shape [batch, tokens, width]; "
                    "this architecture is not supported"
                )
            found.hooks[f"{point}.{layer}"] = location
    for layer in range(layer_count - 1):
        post = visits[found.hooks[f"resid_post.{layer}"]].value
        if not same(post, visits[found.hooks[f"resid_pre.{layer + 1}"]].value):
            raise ModelRefused(
                f"{model.name}: layer {layer + 1} does not take up what layer {layer} gave; "
                "this architecture is not supported"
            )
        found.prove("resid_post.i == resid_pre.i+1")


def _find_routers(model: LoadedModel, layer_count: int, forward: DryForward, found: Findings) -> None:
    """Find router points layer by layer: some architectures begin with dense layers."""
    inputs = {v.location: v for v in forward.visits}
    none: list[int] = []
    for layer in range(layer_count):
        mlp = found.mlps.get(layer)
        router = (
            moe.find_router(_submodule(model, mlp), mlp, inputs.get(f"{mlp}.input"), forward) if mlp else None
        )
        if router is None:
            none.append(layer)
        elif isinstance(router, str):
            found.missing.update({f"{point}.{layer}": router for point in moe.POINTS})
        else:
            found.routers.append(router)
            found.hooks.update({f"{point}.{layer}": at for point, at in router.locations.items()})
            found.missing.update({f"{point}.{layer}": why for point, why in router.missing.items()})
            for identity in router.proofs:
                found.prove(identity)
    for layer in none:
        mlp = found.mlps.get(layer)
        reason = _NO_ROUTER if _is_moe(model) else "not a mixture-of-experts model"
        if found.routers and mlp is None:
            reason = "this layer has no MLP, so no router"
        elif found.routers and mlp is not None:
            reason = f"this layer's MLP is a {type(_submodule(model, mlp)).__name__}, which has no router"
        found.missing.update({f"{point}.{layer}": reason for point in moe.POINTS})


def _find_ends(
    model: LoadedModel,
    layers_path: str,
    layer_count: int,
    *,
    visits: Mapping[str, Visit],
    logits: torch.Tensor,
    found: Findings,
) -> None:
    hf: Any = model.hf
    names = {id(module): name for name, module in hf.named_modules()}
    embed = names.get(id(hf.get_input_embeddings()), "")
    head = names.get(id(hf.get_output_embeddings()), "")
    hidden = visits[f"{layers_path}.0.input"].width
    if f"{embed}.output" not in visits:
        raise ModelRefused(f"{model.name}: the token embedding was not found")
    found.hooks["embed"] = f"{embed}.output"
    if same(visits[f"{embed}.output"].value, visits[f"{layers_path}.0.input"].value):
        found.prove("embed == resid_pre.0")
    head_output = visits.get(f"{head}.output")
    if head_output is None:
        raise ModelRefused(f"{model.name}: the language-model head was not found")
    if head_output.width != int(model.text_config.vocab_size):
        found.missing["logits"] = (
            f"the head puts out {head_output.width} numbers for a vocabulary of "
            f"{model.text_config.vocab_size}"
        )
    elif not same(head_output.value, logits):
        found.missing["logits"] = (
            f"the model changes the head's output before it returns it as logits; {head}.output is "
            "what the head puts out"
        )
    else:
        found.hooks["logits"] = f"{head}.output"
        found.prove("logits are the head's output, one per vocabulary entry")
    last = visits[f"{layers_path}.{layer_count - 1}.output"]
    for location, visit in visits.items():
        path, side, _ = place_of(location)
        if side != "input" or visit.identity != last.identity or path.startswith(layers_path):
            continue
        output = visits.get(f"{path}.output")
        if output is None or output.width != hidden:
            continue
        if f"{head}.input" in visits and same(output.value, visits[f"{head}.input"].value):
            found.hooks["final_norm"] = output.location
            found.prove("final_norm is norm(last resid_post) and what the head takes in")
            return
    found.missing["final_norm"] = "no norm stands between the last layer and the head"


def _drop_faulty(model: LoadedModel, rehearsal: Rehearsal, found: Findings) -> None:
    """Remove points that failed the rehearsal; refuse the model if the stream failed.

    Raises:
        ModelRefused: the residual stream or the embedding failed.
    """
    stream = ("embed", "resid_pre", "resid_post")
    for hook, location in list(found.hooks.items()):
        reason = rehearsal.faults.get(location)
        if reason is None:
            continue
        if grammar.point_of(hook) in stream:
            raise ModelRefused(f"{model.name}: {hook} ({location}): {reason}; this model is not supported")
        del found.hooks[hook]
        found.missing[hook] = reason
    found.missing.update(rehearsal.faults)
    found.proofs["generated from and read, rows are those of a whole forward"] = len(
        rehearsal.compared - rehearsal.faults.keys()
    )


def _drop_partial(layer_count: int, found: Findings) -> None:
    """Give reasons for missing points: one for the whole model, or one per layer that lacks the point.

    Afterwards `missing` names a point that no layer has, or `<point>.<layer>` if other layers have it.
    """
    for point in grammar.LAYER_POINTS:
        names = [f"{point}.{i}" for i in range(layer_count)]
        lacking = [name for name in names if name not in found.hooks]
        reasons = [found.missing.pop(name, None) for name in names]
        reason = found.missing.pop(point, None)
        # of layers of several kinds the first two
        each = list(dict.fromkeys(filter(None, reasons)))[:2]
        reason = reason or "; ".join(each) or "this architecture does not have it"
        if len(lacking) == layer_count:
            found.missing[point] = reason
        else:
            found.missing.update(
                {name: own or reason for name, own in zip(names, reasons, strict=True) if name in lacking}
            )


def _structure(
    model: LoadedModel,
    layer_count: int,
    forward: DryForward,
    found: Findings,
    attention: dict[int, LayerHeads],
) -> ModelStructure:
    tensors = {
        v.location: LocationInfo(
            width=v.width, dtype=_dtype_name(v.value.dtype), tail_only=v.location in forward.tail_only
        )
        for v in forward.visits
    }
    order = {location: i for i, location in enumerate(tensors)}
    hooks = {
        name: HookInfo(location=location, **dict(tensors[location]))
        for name, location in sorted(found.hooks.items(), key=lambda item: order[item[1]])
    }
    switch = position_switch(model.text_config)
    structure = ModelStructure(
        model=model.name,
        architecture=type(model.hf).__name__,
        num_layers=layer_count,
        hidden_size=hooks["resid_pre.0"].width,
        vocab_size=int(model.text_config.vocab_size),
        context_length=model.context_length,
        position_switch=switch if switch is not None and switch < model.context_length else None,
        dtype=_dtype_name(model.dtype),
        device=str(model.device),
        devices=[str(device) for device in model.layer_devices],
        num_parameters=sum(p.numel() for p in model.hf.parameters()),
        chat_template=bool(getattr(model.tokenizer, "chat_template", None)),
        tool_calls=offers_tools(model.tokenizer),
        eos_token_ids=list(model.eos_token_ids),
        hooks=hooks,
        module_locations=list(order),
        module_tensors=tensors,
        unavailable=found.missing,
        proofs=[f"{identity} ({count} checked)" for identity, count in found.proofs.items()],
        revision=model.revision,
        num_experts=max((r.num_experts for r in found.routers), default=None),
        experts_per_token=max((r.experts_per_token for r in found.routers), default=None),
        tensor_parallel=group.size(),
        attention=attention,
    )
    return with_savepoints(structure, {})


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
