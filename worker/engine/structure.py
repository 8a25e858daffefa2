"""Finds a model's hook points by walking its modules, and proves them on a dry forward.

Nothing here knows an architecture by name. The decoder layers are the longest chain of alike
modules; inside a layer, attention and MLP are told by their class, and every point around them by
the data that flow: a tensor is the "residual stream between attention and MLP" because it equals
`resid_pre + attn_out`, not because a module is called so.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from actograph.contract import hooks as grammar
from actograph.contract.errors import ModelRefused
from actograph.contract.resources import HookInfo, ModelStructure
from worker.engine.dry_forward import Visit, dry_forward
from worker.engine.model import LoadedModel

# Words in the class names of a layer's children
_ATTENTION = ("attention", "attn")
_MLP = ("mlp", "feedforward", "ffn", "moe")
_NORM = ("norm",)

_ROUTER_POINTS = ("router_logits", "expert_indices", "expert_weights")


@dataclass(frozen=True)
class Discovery:
    """A proved structure, and what the engine must know to read it."""

    structure: ModelStructure
    same_as: Mapping[str, str]  # location -> first location that shows the same tensor
    changed_later: frozenset[str]  # locations whose tensor the model overwrites afterwards


@dataclass
class _Findings:
    """Points found so far and why others are missing."""

    hooks: dict[str, str] = field(default_factory=dict)  # canonical name -> location
    missing: dict[str, str] = field(default_factory=dict)  # point -> reason
    proofs: dict[str, int] = field(default_factory=dict)  # identity -> layers it was checked on

    def prove(self, identity: str) -> None:
        self.proofs[identity] = self.proofs.get(identity, 0) + 1


def discover(model: LoadedModel) -> Discovery:
    """Find and prove the hook points of `model`.

    A point that cannot be proved on every layer goes to `unavailable` with the reason.

    Raises:
        ModelRefused: the decoder layers, the embedding or the head cannot be found, or the
            residual stream does not pass from layer to layer.
    """
    layers_path = _layers_path(model)
    forward = dry_forward(model)
    visits = forward.visits
    by_location = {v.location: v for v in visits}
    found = _Findings()
    for point in _ROUTER_POINTS:
        found.missing[point] = "router points are not read in this version"
    if not _is_moe(model):
        found.missing.update(dict.fromkeys(_ROUTER_POINTS, "not a mixture-of-experts model"))
    layer_count = len(_submodule(model, layers_path))
    _find_stream(model, layers_path, layer_count, by_location, found)
    for layer in range(layer_count):
        _find_in_layer(model, f"{layers_path}.{layer}", layer, by_location, found)
    _find_ends(model, layers_path, layer_count, visits=by_location, logits=forward.logits, found=found)
    _drop_partial(layer_count, found)
    structure = _structure(model, layer_count, visits, by_location, found)
    first: dict[tuple[Any, ...], str] = {}
    same_as = {v.location: first.setdefault(v.identity, v.location) for v in visits}
    return Discovery(structure=structure, same_as=same_as, changed_later=forward.changed_later)


def _submodule(model: LoadedModel, path: str) -> Any:
    return model.hf.get_submodule(path)


def _is_moe(model: LoadedModel) -> bool:
    config = model.text_config
    fields = ("num_experts", "num_local_experts", "n_routed_experts")
    return any((getattr(config, name, 0) or 0) > 1 for name in fields)


def _layers_path(model: LoadedModel) -> str:
    """Path of the decoder layers: the ModuleList whose length the config gives."""
    count = getattr(model.text_config, "num_hidden_layers", None)
    lists = [
        (name, module)
        for name, module in model.hf.named_modules()
        if isinstance(module, torch.nn.ModuleList) and len(module) == count
    ]
    if not lists:
        raise ModelRefused(
            f"{model.name}: found no list of {count} decoder layers in {type(model.hf).__name__}; "
            "this architecture is not supported"
        )
    path, _ = max(lists, key=lambda item: sum(p.numel() for p in item[1].parameters()))
    return str(path)


def _close(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal within a few roundings of the dtype, measured at the tensor's own scale."""
    if a.shape != b.shape:
        return False
    eps = max(torch.finfo(a.dtype).eps, torch.finfo(b.dtype).eps)
    a, b = a.float(), b.float()
    return bool((a - b).abs().max() <= 8 * eps * b.abs().max().clamp_min(1e-30))


def _find_stream(
    model: LoadedModel,
    layers_path: str,
    layer_count: int,
    visits: Mapping[str, Visit],
    found: _Findings,
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
        if not _close(post, visits[found.hooks[f"resid_pre.{layer + 1}"]].value):
            raise ModelRefused(
                f"{model.name}: layer {layer + 1} does not take up what layer {layer} gave; "
                "this architecture is not supported"
            )
        found.prove("resid_post.i == resid_pre.i+1")


def _child(
    model: LoadedModel, layer_path: str, words: tuple[str, ...], without: tuple[str, ...] = ()
) -> str | None:
    """Path of the layer's child whose class name contains one of `words` and none of `without`."""
    for name, module in _submodule(model, layer_path).named_children():
        kind = type(module).__name__.lower()
        if any(word in kind for word in words) and not any(word in kind for word in without):
            return f"{layer_path}.{name}"
    return None


def _norm_between(
    layer_path: str, source: Visit | None, target: Visit, visits: Mapping[str, Visit]
) -> str | None:
    """The child of the layer whose output is `target`'s tensor (and whose input is `source`'s)."""
    for location, visit in visits.items():
        path, _, side = location.rpartition(".")
        if side != "output" or path.rpartition(".")[0] != layer_path:
            continue
        if visit.identity != target.identity or f"{path}.input" not in visits:
            continue
        if source is None or _close(visits[f"{path}.input"].value, source.value):
            return path
    return None


def _find_in_layer(
    model: LoadedModel, path: str, layer: int, visits: Mapping[str, Visit], found: _Findings
) -> None:
    attention = _child(model, path, _ATTENTION, without=_NORM)
    mlp = _child(model, path, _MLP, without=_ATTENTION + _NORM)
    pre, post = visits[f"{path}.input"], visits[f"{path}.output"]
    attn_out = visits.get(f"{attention}.output")
    mlp_out = visits.get(f"{mlp}.output")
    if attn_out is None or attn_out.value.shape != pre.value.shape:
        attn_out = None
        for point in ("attn_in", "attn_out", "resid_mid"):
            found.missing[point] = "no attention module that puts out one row per token was found"
    if mlp_out is None or mlp_out.value.shape != pre.value.shape:
        mlp_out = None
        for point in ("mlp_in", "mlp_out"):
            found.missing[point] = "no MLP module that puts out one row per token was found"
    if attn_out is not None:
        found.hooks[f"attn_out.{layer}"] = attn_out.location
        norm = _input_norm(path, attention, pre, visits)
        if norm is None:
            found.missing["attn_in"] = "no norm stands between the residual stream and attention"
        else:
            found.hooks[f"attn_in.{layer}"] = f"{norm}.output"
            found.prove("attn_in is norm(resid_pre) and what attention takes in")
    if mlp_out is not None:
        found.hooks[f"mlp_out.{layer}"] = mlp_out.location
        norm = _input_norm(path, mlp, None, visits)
        if norm is None:
            found.missing["mlp_in"] = "no norm stands before the MLP"
        else:
            found.hooks[f"mlp_in.{layer}"] = f"{norm}.output"
            found.prove("mlp_in is what the MLP takes in")
    if attn_out is not None and mlp_out is not None:
        mid = _resid_mid(
            path, pre=pre, post=post, attn_out=attn_out, mlp_out=mlp_out, visits=visits, found=found
        )
        if mid is not None:
            found.hooks[f"resid_mid.{layer}"] = mid


def _input_norm(
    layer_path: str, module: str | None, source: Visit | None, visits: Mapping[str, Visit]
) -> str | None:
    taken = visits.get(f"{module}.input")
    return None if taken is None else _norm_between(layer_path, source, taken, visits)


def _deltas(layer_path: str, out: Visit, visits: Mapping[str, Visit]) -> dict[str, torch.Tensor]:
    """What a sublayer may add to the stream: its output, or a norm's of it (Gemma 2, OLMo 2)."""
    deltas = {"": out.value}
    for location, visit in visits.items():
        path, _, side = location.rpartition(".")
        if (
            side == "input"
            and path.rpartition(".")[0] == layer_path
            and visit.identity == out.identity
            and f"{path}.output" in visits
        ):
            deltas["norm of "] = visits[f"{path}.output"].value
    return deltas


def _resid_mid(
    layer_path: str,
    *,
    pre: Visit,
    post: Visit,
    attn_out: Visit,
    mlp_out: Visit,
    visits: Mapping[str, Visit],
    found: _Findings,
) -> str | None:
    """The location between attention and MLP that equals `resid_pre + attn_out`, proved."""
    attn_deltas = _deltas(layer_path, attn_out, visits)
    mlp_deltas = _deltas(layer_path, mlp_out, visits)
    inputs = [
        v
        for location, v in visits.items()
        if location.endswith(".input")
        and location.rpartition(".")[0].rpartition(".")[0] == layer_path
        and v.value.shape == pre.value.shape
    ]
    for kind, delta in attn_deltas.items():
        for visit in inputs:
            if visit.identity == pre.identity or not _close(pre.value + delta, visit.value):
                continue
            found.prove(f"resid_mid == resid_pre + {kind}attn_out")
            for mlp_kind, mlp_delta in mlp_deltas.items():
                if _close(visit.value + mlp_delta, post.value):
                    found.prove(f"resid_post == resid_mid + {mlp_kind}mlp_out")
                    break
            return visit.location
    if _close(pre.value + attn_out.value + mlp_out.value, post.value):
        found.prove("resid_post == resid_pre + attn_out + mlp_out")
        found.missing["resid_mid"] = (
            "attention and MLP run side by side here, so no stream stands between them"
        )
    else:
        found.missing["resid_mid"] = "no tensor was found that equals resid_pre + attn_out"
    return None


def _find_ends(
    model: LoadedModel,
    layers_path: str,
    layer_count: int,
    *,
    visits: Mapping[str, Visit],
    logits: torch.Tensor,
    found: _Findings,
) -> None:
    hf: Any = model.hf
    names = {id(module): name for name, module in hf.named_modules()}
    embed = names.get(id(hf.get_input_embeddings()), "")
    head = names.get(id(hf.get_output_embeddings()), "")
    hidden = visits[f"{layers_path}.0.input"].width
    if f"{embed}.output" not in visits:
        raise ModelRefused(f"{model.name}: the token embedding was not found")
    found.hooks["embed"] = f"{embed}.output"
    if _close(visits[f"{embed}.output"].value, visits[f"{layers_path}.0.input"].value):
        found.prove("embed == resid_pre.0")
    head_output = visits.get(f"{head}.output")
    if head_output is None:
        raise ModelRefused(f"{model.name}: the language-model head was not found")
    if head_output.width != int(model.text_config.vocab_size):
        found.missing["logits"] = (
            f"the head puts out {head_output.width} numbers for a vocabulary of "
            f"{model.text_config.vocab_size}"
        )
    elif not _close(head_output.value, logits):
        found.missing["logits"] = "the model changes the head's output before it returns it as logits"
    else:
        found.hooks["logits"] = f"{head}.output"
        found.prove("logits are the head's output, one per vocabulary entry")
    last = visits[f"{layers_path}.{layer_count - 1}.output"]
    for location, visit in visits.items():
        path, _, side = location.rpartition(".")
        if side != "input" or visit.identity != last.identity or path.startswith(layers_path):
            continue
        output = visits.get(f"{path}.output")
        if output is None or output.width != hidden:
            continue
        if f"{head}.input" in visits and _close(output.value, visits[f"{head}.input"].value):
            found.hooks["final_norm"] = output.location
            found.prove("final_norm is norm(last resid_post) and what the head takes in")
            return
    found.missing["final_norm"] = "no norm stands between the last layer and the head"


def _drop_partial(layer_count: int, found: _Findings) -> None:
    """A point that some layers lack is available where it was proved; one that none has is not."""
    for point in grammar.LAYER_POINTS:
        have = sum(1 for i in range(layer_count) if f"{point}.{i}" in found.hooks)
        if have:
            found.missing.pop(point, None)
        else:
            found.missing.setdefault(point, "this architecture does not have it")


def _structure(
    model: LoadedModel,
    layer_count: int,
    visits: list[Visit],
    by_location: Mapping[str, Visit],
    found: _Findings,
) -> ModelStructure:
    order = {v.location: i for i, v in enumerate(visits)}
    hooks = {
        name: HookInfo(
            location=location,
            width=by_location[location].width,
            dtype=_dtype_name(by_location[location].value.dtype),
            aliases=[location, *grammar.aliases(name)],
        )
        for name, location in sorted(found.hooks.items(), key=lambda item: order[item[1]])
    }
    return ModelStructure(
        model=model.name,
        architecture=type(model.hf).__name__,
        num_layers=layer_count,
        hidden_size=hooks["resid_pre.0"].width,
        vocab_size=int(model.text_config.vocab_size),
        context_length=model.context_length,
        dtype=_dtype_name(model.dtype),
        device=str(model.device),
        num_parameters=sum(p.numel() for p in model.hf.parameters()),
        chat_template=bool(getattr(model.tokenizer, "chat_template", None)),
        eos_token_ids=list(model.eos_token_ids),
        hooks=hooks,
        module_locations=list(order),
        unavailable=found.missing,
        proofs=[f"{identity} ({count} checked)" for identity, count in found.proofs.items()],
        revision=model.revision,
    )


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
