"""The points of attention's heads, and the proof that patterns can be computed from queries and keys."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from actograph.attention_patterns import weights
from actograph.contract.models import LayerHeads
from worker.engine.attention_calls import AttentionCall, is_seen, watched
from worker.engine.attention_masks import Foreign
from worker.engine.locations import ATTENDED, place_of
from worker.engine.model.device_errors import is_device_lost, is_out_of_memory
from worker.engine.model.loaded import LoadedModel
from worker.engine.structure.comparison import same
from worker.engine.structure.dry_forward import DryForward, Visit
from worker.engine.structure.layer_points import Findings

_POINTS = ("q", "k", "v", "z")
#: tokens of the text that shows the masks; and of the one that proves patterns beyond a window, at most
_SHORT, _LONG = 24, 384
#: largest difference of a weight from the model's own
_APART = 1e-4


def find_heads(
    model: LoadedModel, layers_path: str, layers: int, forward: DryForward, found: Findings
) -> None:
    """Find the points of heads in each layer: what its attention function takes, and what it gives."""
    visits = {visit.location: visit for visit in forward.visits}
    for layer in range(layers):
        path = f"{layers_path}.{layer}"
        own = [name for name in forward.attended if name.startswith(f"{path}.")]
        reason = _no_heads(model, path, own, forward)
        if reason is not None:
            for point in _POINTS:
                found.lack(point, layer, reason)
            continue
        (attention,) = own
        shared = "each of several ranks has a part of the heads; load the model without tensor parallelism"
        for point, side in zip("qkv", ATTENDED, strict=True):
            location = f"{attention}.{side}"
            if location in visits:
                found.hooks[f"{point}.{layer}"] = location
            elif location in forward.shared:
                found.lack(point, layer, shared)
            else:
                found.lack(point, layer, f"{location} does not have one row for each token")
        z = _projected(attention, forward, visits)
        if z is not None:
            found.hooks[f"z.{layer}"] = z
            found.prove("z is what the heads give, and what the output projection takes in")
        elif any(location.startswith(f"{attention}.") for location in forward.shared):
            found.lack("z", layer, shared)
        else:
            found.lack("z", layer, f"no module below {attention} takes in what the heads give, as it is")


def _no_heads(model: LoadedModel, path: str, own: list[str], forward: DryForward) -> str | None:
    """Why a layer has no points of heads; None if it has."""
    layer = model.hf.get_submodule(path)
    if not is_seen(model) and any(
        word in type(one).__name__.lower() for one in layer.modules() for word in ("attention", "attn")
    ):
        return "its attention is its own, and not transformers' attention function, which shows the heads"
    if not own:
        children = dict(layer.named_children()).values()
        mixer = next((type(one).__name__ for one in children if "norm" not in type(one).__name__.lower()), "")
        return f"this layer has no attention of queries and keys{mixer and f' (its first part is a {mixer})'}"
    if len(own) > 1:
        return "this layer has several attention modules"
    one = forward.attended[own[0]]
    if getattr(model.text_config, "kv_lora_rank", None) or one.width != one.value_width:
        return "its attention is latent (MLA): its heads have no keys and values of their own"
    if one.heads % one.key_heads:
        return f"its {one.heads} heads do not share {one.key_heads} key heads evenly"
    if not one.apart:
        return "its queries, keys and values share memory, so one cannot be told from the others"
    return None


def _projected(attention: str, forward: DryForward, visits: Mapping[str, Visit]) -> str | None:
    """The input of the output projection: what the attention function gives, head by head."""
    result = forward.attended[attention].result
    for location, visit in visits.items():
        place = place_of(location)
        if place.side == "input" and place.path.startswith(f"{attention}.") and same(visit.value, result):
            return location
    return None


@dataclass
class _Proof:
    """Attention of each layer, by the calls of a forward pass."""

    layers: Mapping[str, int]  # path of the attention module -> layer
    names: Mapping[int, str]
    found: dict[int, LayerHeads] = field(default_factory=dict)

    def take(self, call: AttentionCall) -> None:
        layer = self.layers.get(self.names[id(call.module)])
        before = self.found.get(-1 if layer is None else layer)
        if layer is not None and (before is None or before.unproved is None):
            self.found[layer] = _heads_of(call)


def prove_patterns(model: LoadedModel, forward: DryForward, found: Findings) -> dict[int, LayerHeads]:
    """How each layer with `q` and `k` attends, held against the weights of the model's own eager attention.

    Patterns that differ, or cannot be told, are `unproved` with the reason.
    """
    layers = {
        place_of(location).path: int(hook.partition(".")[2])
        for hook, location in found.hooks.items()
        if hook.startswith("q.") and f"k.{hook[2:]}" in found.hooks
    }
    if not layers:
        return {}
    proof = _Proof(layers, {id(module): name for name, module in model.hf.named_modules()})
    failed = None
    try:
        _run(model, _SHORT, proof)
        windows = [one.window for one in proof.found.values() if one.window is not None]
        longest = max((window for window in windows if _SHORT - 8 <= window <= _LONG), default=0)
        if longest:
            _run(model, longest + 16, proof)
    except Exception as error:
        if is_out_of_memory(error) or is_device_lost(error):
            raise
        failed = f"its eager attention fails ({type(error).__name__}: {error})"
    made = {}
    for path, layer in layers.items():
        one = forward.attended[path]
        heads = proof.found.get(layer)
        if heads is None or failed is not None:
            heads = LayerHeads(
                heads=one.heads,
                key_heads=one.key_heads,
                width=one.width,
                scale=one.width**-0.5,
                unproved=failed or "its eager attention was not called",
            )
        made[layer] = heads.model_copy(update={"is_rotated": _is_rotated(path, forward)})
        if heads.unproved is None:
            found.prove("attention computed from q and k is the model's own")
    return dict(sorted(made.items()))


def _run(model: LoadedModel, tokens: int, proof: _Proof) -> None:
    """One eager forward pass over a text of so many tokens."""
    count = min(tokens, model.context_length)
    vocabulary = int(model.text_config.vocab_size)
    ids = torch.tensor([[(7 * i * i + 11 * i + 3) % vocabulary for i in range(count)]], device=model.device)
    with torch.inference_mode(), watched(model, after=proof.take, eager=True):
        model.hf(input_ids=ids, use_cache=False)


def _heads_of(call: AttentionCall) -> LayerHeads:
    """How a layer attends, by the arguments of its attention function and by its mask."""
    options: Mapping[str, Any] = call.options
    window = None if call.kind is None or isinstance(call.kind, Foreign) else call.kind.window
    scale, sinks = options.get("scaling"), options.get("s_aux")
    heads = LayerHeads(
        heads=call.query.shape[1],
        key_heads=call.key.shape[1],
        width=call.query.shape[3],
        scale=call.query.shape[3] ** -0.5 if scale is None else float(scale),
        window=window,
        softcap=options.get("softcap"),
        sinks=None if sinks is None else sinks.detach().float().flatten().tolist(),
    )
    return heads.model_copy(update={"unproved": _difference(call, heads)})


def _difference(call: AttentionCall, heads: LayerHeads) -> str | None:
    """Why the patterns of a call are not those of `heads`; None if they are."""
    if isinstance(call.kind, Foreign):
        return call.kind.reason
    # in float32, so that the arithmetic is compared, and not the rounding of a smaller dtype
    query, key, value = call.query.float(), call.key.float(), call.value.float()
    mask = (
        call.mask.float()
        if isinstance(call.mask, torch.Tensor) and call.mask.is_floating_point()
        else call.mask
    )
    _, due = call.again(call.module, query, key, value, mask, **call.options)
    if due is None or due.shape[-2:] != (query.shape[2], key.shape[2]):
        return "its eager attention does not return its weights"
    expected, queries, keys = (one[0].float().cpu().numpy() for one in (due, query, key))
    group = heads.heads // heads.key_heads
    apart = max(
        float(abs(weights(queries[head], keys[head // group], heads, head, first=0) - expected[head]).max())
        for head in range(heads.heads)
    )
    if not apart <= _APART:
        return f"a weight computed from q and k differs by {apart:.2g} from that of its eager attention"
    return None


def _is_rotated(attention: str, forward: DryForward) -> bool:
    """Whether queries or keys are not what a projection puts out, perhaps beside others."""
    below = [
        visit.value.flatten(2)
        for visit in forward.visits
        if place_of(visit.location).side == "output"
        and place_of(visit.location).path.startswith(f"{attention}.")
    ]
    by_location = {visit.location: visit.value.flatten(2) for visit in forward.visits}
    for side in ("query", "key"):
        rows = by_location[f"{attention}.{side}"]
        width = rows.shape[-1]
        parts = [
            one[..., begin : begin + width]
            for one in below
            for begin in range(0, one.shape[-1] - width + 1, width)
        ]
        if not any(same(part, rows) for part in parts):
            return True
    return False
