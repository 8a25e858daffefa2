"""The points inside one decoder layer: attention, MLP, the norms before them, the stream between them.

Attention and MLP are told by their class; every point around them by the data that flow.
"""

from collections.abc import Mapping

import torch

from worker.engine.comparison import adds_up, same
from worker.engine.dry_forward import Visit
from worker.engine.findings import Findings
from worker.engine.locations import place_of
from worker.engine.model import LoadedModel

# Words in the class names of a layer's children
_ATTENTION = ("attention", "attn")
_MLP = ("mlp", "feedforward", "ffn", "moe")
_NORM = ("norm",)


def _child(
    model: LoadedModel, layer_path: str, words: tuple[str, ...], without: tuple[str, ...] = ()
) -> str | None:
    """Path of the layer's child whose class name contains one of `words` and none of `without`."""
    for name, module in model.hf.get_submodule(layer_path).named_children():
        kind = type(module).__name__.lower()
        if any(word in kind for word in words) and not any(word in kind for word in without):
            return f"{layer_path}.{name}"
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
    """Find and prove the points of one decoder layer.

    Args:
        path: of the layer.
        visits: by location.
        found: takes the points, the proofs, and the reasons for points that are not there.
    """
    attention = _child(model, path, _ATTENTION, without=_NORM)
    mlp = _child(model, path, _MLP, without=_ATTENTION + _NORM)
    if mlp is not None:
        found.mlps[layer] = mlp
    pre, post = visits[f"{path}.input"], visits[f"{path}.output"]
    attn_out = visits.get(f"{attention}.output")
    mlp_out = visits.get(f"{mlp}.output")
    if attn_out is None or attn_out.value.shape != pre.value.shape:
        attn_out = None
        for point in ("attn_in", "attn_out", "resid_mid"):
            found.lack(point, layer, "no attention module that puts out one row per token was found")
    if mlp_out is None or mlp_out.value.shape != pre.value.shape:
        mlp_out = None
        for point in ("mlp_in", "mlp_out", "resid_mid"):
            found.lack(point, layer, "no MLP module that puts out one row per token was found")
    if attn_out is not None:
        found.hooks[f"attn_out.{layer}"] = attn_out.location
        norm = _input_norm(path, attention, pre, visits)
        if norm is None:
            found.lack("attn_in", layer, "no norm stands between the residual stream and attention")
        else:
            found.hooks[f"attn_in.{layer}"] = f"{norm}.output"
            found.prove("attn_in is norm(resid_pre) and what attention takes in")
    if mlp_out is not None:
        found.hooks[f"mlp_out.{layer}"] = mlp_out.location
        norm = _input_norm(path, mlp, None, visits)
        if norm is None:
            found.lack("mlp_in", layer, "no norm stands before the MLP")
        else:
            found.hooks[f"mlp_in.{layer}"] = f"{norm}.output"
            found.prove("mlp_in is what the MLP takes in")
    if attn_out is not None and mlp_out is not None:
        mid = _resid_mid(
            path, pre=pre, post=post, attn_out=attn_out, mlp_out=mlp_out, visits=visits, found=found
        )
        beside = f"{mlp}.input" in visits and (
            _input_norm(path, mlp, pre, visits) is not None or same(visits[f"{mlp}.input"].value, pre.value)
        )
        if mid is not None:
            found.hooks[f"resid_mid.{layer}"] = mid
        elif beside and adds_up(post.value, pre.value, attn_out.value, mlp_out.value):
            found.prove("resid_post == resid_pre + attn_out + mlp_out")
            found.lack(
                "resid_mid",
                layer,
                "attention and MLP run side by side here, so no stream stands between them",
            )
        else:
            found.lack("resid_mid", layer, "no tensor was found that equals resid_pre + attn_out")


def _input_norm(
    layer_path: str, module: str | None, source: Visit | None, visits: Mapping[str, Visit]
) -> str | None:
    taken = visits.get(f"{module}.input")
    return None if taken is None else _norm_between(layer_path, source, taken, visits)


def _deltas(layer_path: str, out: Visit, visits: Mapping[str, Visit]) -> dict[str, torch.Tensor]:
    """What a sublayer may add to the stream: its output, or a norm's of it (Gemma 2, OLMo 2)."""
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


def _resid_mid(
    layer_path: str,
    *,
    pre: Visit,
    post: Visit,
    attn_out: Visit,
    mlp_out: Visit,
    visits: Mapping[str, Visit],
    found: Findings,
) -> str | None:
    """The location between attention and MLP that equals `resid_pre + attn_out`, proved."""
    attn_deltas = _deltas(layer_path, attn_out, visits)
    mlp_deltas = _deltas(layer_path, mlp_out, visits)
    inputs = [
        v
        for location, v in visits.items()
        if place_of(location).side == "input"
        and place_of(location).parent == layer_path
        and v.value.shape == pre.value.shape
    ]
    for kind, delta in attn_deltas.items():
        for visit in inputs:
            if visit.identity == pre.identity or not adds_up(visit.value, pre.value, delta):
                continue
            found.prove(f"resid_mid == resid_pre + {kind}attn_out")
            for mlp_kind, mlp_delta in mlp_deltas.items():
                if adds_up(post.value, visit.value, mlp_delta):
                    found.prove(f"resid_post == resid_mid + {mlp_kind}mlp_out")
                    break
            return visit.location
    return None
