"""The points inside one decoder layer: attention, MLP, the norms before them, the stream between them.

Attention and MLP are recognised by their class, every point around them by comparing tensors.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from worker.engine.locations import place_of
from worker.engine.model.loaded import LoadedModel
from worker.engine.structure.comparison import adds_up, adds_up_scaled, same
from worker.engine.structure.dry_forward import Visit
from worker.engine.structure.moe import Router

# Words in the class names of a layer's children
_ATTENTION = ("attention", "attn")
_MLP = ("mlp", "feedforward", "ffn", "moe")
_NORM = ("norm",)
# Words of a block's class below another module: "moe" may be in the name of every class of a model
_WHOLE_MLP = ("mlp", "feedforward", "ffn")


@dataclass
class Findings:
    """Points found so far, and the reasons for missing ones."""

    hooks: dict[str, str] = field(default_factory=dict)  # canonical name -> location
    missing: dict[str, str] = field(default_factory=dict)  # point or <point>.<layer> -> reason
    proofs: dict[str, int] = field(default_factory=dict)  # identity -> layers it was checked on
    mlps: dict[int, str] = field(default_factory=dict)  # layer -> path of its MLP
    routers: list[Router] = field(default_factory=list)

    def prove(self, identity: str) -> None:
        self.proofs[identity] = self.proofs.get(identity, 0) + 1

    def lack(self, point: str, layer: int, reason: str) -> None:
        self.missing[f"{point}.{layer}"] = reason


def _child(
    model: LoadedModel, layer_path: str, words: tuple[str, ...], without: tuple[str, ...] = ()
) -> str | None:
    """Path of the layer's child whose class name contains one of `words` and none of `without`."""
    for name, module in model.hf.get_submodule(layer_path).named_children():
        kind = type(module).__name__.lower()
        if any(word in kind for word in words) and not any(word in kind for word in without):
            return f"{layer_path}.{name}"
    return None


def _holds(model: LoadedModel, path: str | None, words: tuple[str, ...]) -> str | None:
    """Why a module is not one sublayer: one of the other kind is below it (Zamba 2). None if it is one."""
    if path is None:
        return None
    module = model.hf.get_submodule(path)
    for name, below in module.named_modules():
        kind = type(below).__name__
        if name and any(word in kind.lower() for word in words):
            return f"{path} is a {type(module).__name__}, which holds a {kind} too"
    return None


def _norm_between(
    layer_path: str, source: Visit | None, target: Visit, visits: Mapping[str, Visit]
) -> str | None:
    """The child of the layer whose output is `target`'s tensor (and whose input is `source`'s)."""
    for location, visit in visits.items():
        place = place_of(location)
        path = place.path
        if place.side != "output" or place.part or place.parent != layer_path:
            continue
        if visit.identity != target.identity or f"{path}.input" not in visits:
            continue
        if source is None or same(visits[f"{path}.input"].value, source.value):
            return path
    return None


def find_in_layer(
    model: LoadedModel, path: str, layer: int, visits: Mapping[str, Visit], found: Findings
) -> None:
    """Find and verify the points of one decoder layer.

    Args:
        path: of the layer.
        visits: by location.
        found: takes the points, the proofs, and the reasons for missing points.
    """
    attention = _child(model, path, _ATTENTION, without=_NORM)
    mlp = _child(model, path, _MLP, without=_ATTENTION + _NORM)
    no_attention, no_mlp = _holds(model, attention, _WHOLE_MLP), _holds(model, mlp, _ATTENTION)
    attention = None if no_attention else attention
    mlp = None if no_mlp else mlp
    if mlp is not None:
        found.mlps[layer] = mlp
    pre, post = visits[f"{path}.input"], visits[f"{path}.output"]
    attn_out = _output(attention, pre, visits)
    mlp_out = _output(mlp, pre, visits)
    if attn_out is None:
        for point in ("attn_in", "attn_out", "resid_mid"):
            reason = no_attention or "no attention module that puts out one row per token was found"
            found.lack(point, layer, reason)
    else:
        norm = _input_norm(path, attention, pre, visits)
        if norm is None:
            found.lack("attn_in", layer, "no norm stands between the residual stream and attention")
        else:
            found.hooks[f"attn_in.{layer}"] = f"{norm}.output"
            found.prove("attn_in is norm(resid_pre) and what attention takes in")
    if mlp_out is None:
        for point in ("mlp_in", "mlp_out", "resid_mid"):
            reason = no_mlp or "no MLP module that puts out one row per token was found"
            found.lack(point, layer, reason)
    else:
        norm = _input_norm(path, mlp, None, visits)
        if norm is None:
            found.lack("mlp_in", layer, "no norm stands before the MLP")
        else:
            found.hooks[f"mlp_in.{layer}"] = f"{norm}.output"
            found.prove("mlp_in is what the MLP takes in")
    if mlp_out is not None and same(mlp_out.value, post.value):
        found.lack("mlp_out", layer, f"{mlp_out.location} is resid_post: the module adds the stream to it")
    elif mlp_out is not None:
        found.hooks[f"mlp_out.{layer}"] = mlp_out.location
    if attn_out is not None and _is_stream(path, attn_out, mlp, visits):
        found.lack(
            "attn_out",
            layer,
            f"{attn_out.location} goes into the MLP as the stream, so it is not attention's share alone",
        )
        found.lack("resid_mid", layer, "what attention adds to the stream is not seen apart from it")
    elif attn_out is not None:
        found.hooks[f"attn_out.{layer}"] = attn_out.location
        if mlp_out is not None:
            stream = _Stream(pre, post, attn_out, mlp_out)
            _find_mid(path, layer, stream, mlp=mlp, visits=visits, found=found)


def _output(module: str | None, like: Visit, visits: Mapping[str, Visit]) -> Visit | None:
    """Output of a module, if it has one row per token as wide as the stream."""
    out = visits.get(f"{module}.output")
    return out if out is not None and out.value.shape == like.value.shape else None


def _is_stream(layer_path: str, attn_out: Visit, mlp: str | None, visits: Mapping[str, Visit]) -> bool:
    """Whether the MLP, or the norm before it, takes in attention's output as it is (BLOOM)."""
    taken = visits.get(f"{mlp}.input")
    if taken is None:
        return False
    return taken.identity == attn_out.identity or (
        _norm_between(layer_path, attn_out, taken, visits) is not None
    )


class _Stream(NamedTuple):
    """A layer's residual stream before and after it, and the two additions to it."""

    pre: Visit
    post: Visit
    attn_out: Visit
    mlp_out: Visit


def _find_mid(
    path: str, layer: int, stream: _Stream, *, mlp: str | None, visits: Mapping[str, Visit], found: Findings
) -> None:
    """Find the stream between attention and MLP, or note why there is none."""
    pre, post, attn_out, mlp_out = stream
    mid = _resid_mid(path, stream, visits, found)
    beside = f"{mlp}.input" in visits and (
        _input_norm(path, mlp, pre, visits) is not None or same(visits[f"{mlp}.input"].value, pre.value)
    )
    if mid is not None:
        found.hooks[f"resid_mid.{layer}"] = mid
    elif beside and adds_up(post.value, pre.value, attn_out.value, mlp_out.value):
        found.prove("resid_post == resid_pre + attn_out + mlp_out")
        found.lack(
            "resid_mid", layer, "attention and MLP run side by side here, so no stream stands between them"
        )
    else:
        found.lack("resid_mid", layer, "no tensor was found that equals resid_pre + attn_out")


def _input_norm(
    layer_path: str, module: str | None, source: Visit | None, visits: Mapping[str, Visit]
) -> str | None:
    taken = visits.get(f"{module}.input")
    return None if taken is None else _norm_between(layer_path, source, taken, visits)


def _deltas(layer_path: str, out: Visit, visits: Mapping[str, Visit]) -> dict[str, torch.Tensor]:
    """Candidates for a sublayer's addition to the stream: its output, or a norm of it (Gemma 2, OLMo 2)."""
    deltas = {"": out.value}
    for location, visit in visits.items():
        place = place_of(location)
        if (
            place.side == "input"
            and place.parent == layer_path
            and visit.identity == out.identity
            and f"{place.path}.output" in visits
        ):
            deltas["norm of "] = visits[f"{place.path}.output"].value
    return deltas


def _resid_mid(layer_path: str, stream: _Stream, visits: Mapping[str, Visit], found: Findings) -> str | None:
    """Verified location between attention and MLP that equals `resid_pre + attn_out`."""
    pre, post, attn_out, mlp_out = stream
    attn_deltas = _deltas(layer_path, attn_out, visits)
    mlp_deltas = _deltas(layer_path, mlp_out, visits)
    inputs = [
        v
        for location, v in visits.items()
        if place_of(location).side == "input"
        and place_of(location).parent == layer_path
        and v.value.shape == pre.value.shape
    ]
    for visit in inputs:
        kind = None if visit.identity == pre.identity else _added(visit.value, pre.value, attn_deltas)
        if kind is None:
            continue
        found.prove(f"resid_mid == resid_pre + {kind}attn_out")
        mlp_kind = _added(post.value, visit.value, mlp_deltas)
        if mlp_kind is not None:
            found.prove(f"resid_post == resid_mid + {mlp_kind}mlp_out")
        return visit.location
    return None


def _added(total: torch.Tensor, first: torch.Tensor, deltas: Mapping[str, torch.Tensor]) -> str | None:
    """Name of the delta that added to `first` gives `total`; None if no delta does.

    A constant factor (Granite) is tried last, since it is fitted to the data.
    """
    for times, fits in (("", adds_up), ("a constant times ", adds_up_scaled)):
        for kind, delta in deltas.items():
            if fits(total, first, delta):
                return times + kind
    return None
