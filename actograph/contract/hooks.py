"""Names of hook points: `<point>.<layer>`, and the aliases of other tools.

A name is resolved against a model's structure by parsing and table look-up alone. A client's text is never
evaluated or followed as an attribute path.
"""

import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Literal, get_args

from pydantic import Field

from actograph.contract.errors import InvalidRequest, UnknownHook
from actograph.contract.models import ModelStructure
from actograph.contract.suggestions import LISTED, nearest

LayerPoint = Literal[
    "resid_pre", "attn_in", "q", "k", "v", "z", "attn_out", "resid_mid", "mlp_in", "mlp_out", "resid_post",
    "router_logits", "expert_indices", "expert_weights",
]  # fmt: skip
ModelPoint = Literal["embed", "final_norm", "logits"]
PointName = Literal[LayerPoint, ModelPoint]

LAYER_POINTS: tuple[str, ...] = get_args(LayerPoint)
MODEL_POINTS: tuple[str, ...] = get_args(ModelPoint)
POINTS: tuple[str, ...] = ("embed", *LAYER_POINTS, "final_norm", "logits")

# start:stop:step, non-negative, as Python slices count
LayerSlice = Annotated[str, Field(pattern=r"^\d{0,6}:\d{0,6}(:[1-9]\d{0,5})?$")]

_CANONICAL = re.compile(rf"^({'|'.join(LAYER_POINTS)})\.(\d+)$")
_DIGITS = re.compile(r"\d+")
_INDEX = re.compile(r"\[(\d+)\]")
_NUMBER = re.compile(r"\.(\d+)(?=\.|$)")
# a module's main tensor, as nnsight code names it where modules return tuples
_FIRST = ".output.0"

#: stands for each layer in a hook of a capture
IN_LAYERS = "{i}"

#: point -> its other names: the flat name, those of TransformerLens (what SAE users type, then version 3) and
#: of nnterp
_ALIASES: dict[str, tuple[str, ...]] = {
    "embed": ("hook_embed", "embed.hook_out", "token_embeddings"),
    "resid_pre": (
        "layer_{}_input", "blocks.{}.hook_resid_pre", "blocks.{}.hook_in", "layers_input[{}]",
    ),
    "attn_in": ("layer_{}_input_layernorm_output",),
    "q": ("blocks.{}.attn.hook_rot_q",),
    "k": ("blocks.{}.attn.hook_rot_k",),
    "v": ("blocks.{}.attn.hook_v", "blocks.{}.attn.v.hook_out"),
    "z": ("blocks.{}.attn.hook_z", "blocks.{}.attn.o.hook_in"),
    "attn_out": (
        "layer_{}_self_attn_output", "blocks.{}.hook_attn_out", "blocks.{}.attn.hook_out",
        "attentions_output[{}]",
    ),
    "resid_mid": ("layer_{}_post_attention_layernorm_input", "blocks.{}.hook_resid_mid"),
    "mlp_in": ("layer_{}_post_attention_layernorm_output",),
    "mlp_out": (
        "layer_{}_mlp_output", "blocks.{}.hook_mlp_out", "blocks.{}.mlp.hook_out", "mlps_output[{}]",
    ),
    "resid_post": (
        "layer_{}_output", "blocks.{}.hook_resid_post", "blocks.{}.hook_out", "layers_output[{}]",
    ),
    "final_norm": ("ln_final",),
    "logits": ("unembed.hook_out",),
}  # fmt: skip
#: TransformerLens' names of queries and keys as their projections put them out: before a rotation
_PROJECTED = re.compile(r"blocks\.(\d+)\.attn\.(?:hook_([qk])|([qk])\.hook_out)")
_POINT_OF = {alias: point for point, names in _ALIASES.items() for alias in names}
_POINT_OF |= {f"{point}.{{}}": point for point in LAYER_POINTS} | {point: point for point in MODEL_POINTS}


def canonical(name: str) -> str | None:
    """The canonical form of a name without a model's structure.

    Returns None for unknown names and for module paths, which need the structure; see `resolve`.
    """
    if "{" in name:
        return None
    point = _POINT_OF.get(_DIGITS.sub("{}", name, count=1))
    layer = _DIGITS.search(name)
    return point if point is None or layer is None else f"{point}.{int(layer[0])}"


def aliases(hook: str) -> list[str]:
    """All other names of this hook that `canonical` understands."""
    return [name.format(layer_of(hook)) for name in _ALIASES.get(point_of(hook), ())]


def flat_name(hook: str) -> str:
    """A hook's name in letters, digits and underscores: `layer_8_input_layernorm_output` for `attn_in.8`.

    Hooks without such an alias get a similar name: `layer_3_router_logits`, and for a module location
    `model_layers_0_mlp_up_proj_output`.
    """
    flat = next((name for name in aliases(hook) if name.startswith("layer_")), None)
    if flat is None and (layer := layer_of(hook)) is not None:
        flat = f"layer_{layer}_{point_of(hook)}"
    return flat or re.sub(r"\W+", "_", hook)


def names_in(structure: ModelStructure, hook: str) -> list[str]:
    """All other names of this hook that `resolve` understands for this model.

    These are its module path with dots and with brackets, the aliases of its point, and savepoints. A path
    that two points share (Phi's one norm before attention and MLP) is a name of the first.
    """
    location = structure.locations.get(hook, hook)
    names = [location, _NUMBER.sub(r"[\1]", location), *aliases(hook)]
    names += [name for name, meant in structure.savepoints.items() if meant == hook]
    point, layer = point_of(hook), layer_of(hook)
    if point in ("q", "k") and layer is not None and not _is_rotated(structure, layer):
        names += [f"blocks.{layer}.attn.hook_{point}", f"blocks.{layer}.attn.{point}.hook_out"]
    return [name for name in dict.fromkeys(names) if name != hook and resolve(name, structure) == hook]


def matching(stored: Iterable[str], wanted: Sequence[str]) -> list[str]:
    """Stored hooks that are wanted by name, alias, or point for all of its layers.

    Raises:
        UnknownHook: a wanted one is not stored; the message has the nearest name.
    """
    names, found = list(stored), dict[str, None]()
    for place, name in enumerate(wanted):
        same = [one for one in names if name in (one, point_of(one)) or one == canonical(name)]
        if not same:
            raise UnknownHook(not_stored(name, names), param=f"hooks.{place}")
        found.update(dict.fromkeys(same))
    return list(found)


def not_stored(name: str, stored: Iterable[str]) -> str:
    """The fault of a hook that is not stored, with the nearest name, or those that are."""
    names, point = list(stored), point_of(canonical(name) or name)
    if not names:
        return f"no tensor {name} is stored; no hook is"
    points = {point_of(one) for one in names}
    # of a stored point the layers help, and not the name that is spelled alike
    near = None if point in points else nearest(name, [*names, *points])
    return f"no tensor {name} is stored" + (
        f". Did you mean {near!r}?" if near else f"; stored: {in_short(names)}"
    )


def in_short(names: Iterable[str]) -> str:
    """Hooks in a few words, by point and layer: `resid_post.0 to resid_post.29, logits`."""
    layers: dict[str, list[int]] = {}
    for name in names:
        layer = layer_of(name)
        layers.setdefault(point_of(name), []).extend([] if layer is None else [layer])
    parts = []
    for point, numbers in layers.items():
        own = sorted(set(numbers))
        if len(own) > 2 and own[-1] - own[0] == len(own) - 1:
            parts.append(f"{point}.{own[0]} to {point}.{own[-1]}")
        else:
            parts += [f"{point}.{layer}" for layer in own] or [point]
    more = f" and {len(parts) - LISTED} more" if len(parts) > LISTED else ""
    return ", ".join(parts[:LISTED]) + more


def point_of(hook: str) -> str:
    """`resid_post` for `resid_post.12`; a module location is its own point."""
    m = _CANONICAL.match(hook)
    return m[1] if m else hook


def layer_of(hook: str) -> int | None:
    """12 for `resid_post.12`; None for hooks without a layer."""
    m = _CANONICAL.match(hook)
    return int(m[2]) if m else None


def of_rows(name: str, structure: ModelStructure, width: int, *, said: str, param: str) -> str:
    """The canonical name of a hook whose rows are floats of this width.

    Args:
        said: beginning of an error's message before the width, such as `SAE res-8 takes rows of`.
        param: field of the hook.

    Raises:
        UnknownHook: the model has no such hook.
        InvalidRequest: it holds integers, or rows of another width.
    """
    try:
        hook = resolve(name, structure)
    except UnknownHook as error:
        raise UnknownHook(error.message, param=param) from None
    info = structure.tensor_of(hook)
    if info is not None and "int" in info.dtype:
        raise InvalidRequest(f"{hook} holds integers ({info.dtype}); choose a hook of floats", param=param)
    if info is not None and info.width != width:
        raise InvalidRequest(f"{said} {width} numbers, {hook} is {info.width} wide", param=param)
    return hook


def resolve(name: str, structure: ModelStructure) -> str:
    """The canonical hook name of `name` in this model.

    A real module location that is no standard point (`model.layers.3.mlp.up_proj.output`)
    is its own canonical name.

    Raises:
        UnknownHook: the model has no such point; the message suggests similar names.
    """
    if name in structure.savepoints:
        return structure.savepoints[name]
    hook = canonical(name)
    if projected := _PROJECTED.fullmatch(name):
        number, point = int(projected[1]), projected[2] or projected[3]
        hook = f"{point}.{number}"
        if hook in structure.locations and _is_rotated(structure, number):
            raise UnknownHook(
                f"{name} is the {'query' if point == 'q' else 'key'} as its projection puts it out. This "
                f"model changes it (by a rotation, a norm or a factor) before attention sees it as {hook}, "
                f"or blocks.{number}.attn.hook_rot_{point}. Ask for that, or for the projection's output by "
                "its module path",
                param="hooks",
            )
    if hook is not None:
        if hook in structure.locations:
            return hook
        layer = layer_of(hook)
        if layer is not None and layer >= structure.num_layers:
            raise UnknownHook(f"{name}: the model has layers 0 to {structure.num_layers - 1}", param="hooks")
        reason = _why_missing(hook, structure)
        raise UnknownHook(f"{name}: {reason}", param="hooks")
    location = _INDEX.sub(r".\1", name)
    if location.endswith(_FIRST):
        location = location.removesuffix(_FIRST) + ".output"
    for hook, known in structure.locations.items():
        if known == location:
            return hook
    if location in structure.module_locations:
        return location
    if location in structure.unavailable:
        raise UnknownHook(f"{name}: {structure.unavailable[location]}", param="hooks")
    if (point := name.partition("@")[0]) in LAYER_POINTS:
        raise UnknownHook(
            f"{name}: {point} is a point of every layer, so a hook needs the layer, such as {point}.0; a "
            f"capture takes several as {point}.{IN_LAYERS}, or {point} among its points",
            param="hooks",
        )
    near = difflib.get_close_matches(name, list(structure.locations), cutoff=0.5)
    near += difflib.get_close_matches(location, structure.module_locations, cutoff=0.7)
    hint = f"; nearest: {', '.join(near[:3])}" if near else ""
    raise UnknownHook(f"{name}: no such hook point or module{hint}", param="hooks")


def uses_layers(points: Sequence[str], hooks: Iterable[str]) -> bool:
    """Whether a capture spec reads its `layers`; without points and hooks it captures `resid_post`."""
    named = list(hooks)
    return any(IN_LAYERS in name for name in named) or any(
        point in LAYER_POINTS for point in points or ([] if named else ["resid_post"])
    )


def resolved(
    names: Iterable[str], layers: Sequence[int] | str | None, structure: ModelStructure
) -> dict[str, str]:
    """Name -> canonical name of each explicit hook of a capture spec; `{i}` becomes the number of each layer.

    Raises:
        UnknownHook: the model lacks a hook: itself, in each of its layers, or in one that is listed.
    """
    found: dict[str, str] = {}
    is_listed = isinstance(layers, Sequence) and not isinstance(layers, str)
    for name in names:
        if IN_LAYERS not in name:
            if "{" in name:
                raise UnknownHook(f"{name}: write {IN_LAYERS} for the number of a layer", param="hooks")
            found[name] = resolve(name, structure)
            continue
        known, fault = dict[str, str](), None
        for layer in select_layers(layers, structure.num_layers):
            numbered = name.replace(IN_LAYERS, str(layer))
            try:
                known[numbered] = resolve(numbered, structure)
            except UnknownHook as error:
                fault = fault or error
        if fault is not None and (is_listed or not known):
            raise fault
        found |= known
    return found


def _is_rotated(structure: ModelStructure, layer: int) -> bool:
    known = structure.attention.get(layer)
    return known is None or known.is_rotated


def _why_missing(hook: str, structure: ModelStructure) -> str:
    general = structure.unavailable.get(point_of(hook), "this architecture does not have it")
    return structure.unavailable.get(hook, general)


def select_layers(layers: Sequence[int] | str | None, num_layers: int) -> list[int]:
    """Layer indices, ascending, for a capture spec's `layers`.

    Raises:
        UnknownHook: a layer outside the model, or an empty slice.
    """
    if layers is None:
        return sorted({num_layers // 4, num_layers // 2, 3 * num_layers // 4})
    if isinstance(layers, str):
        if layers == "all":
            return list(range(num_layers))
        parts = [int(p) if p else None for p in layers.split(":")]
        chosen = list(range(num_layers))[slice(*parts)]
        if not chosen:
            raise UnknownHook(f"layers {layers} selects none of {num_layers} layers", param="layers")
        return chosen
    wrong = [i for i in layers if not 0 <= i < num_layers]
    if wrong:
        raise UnknownHook(f"layer {wrong[0]}: the model has layers 0 to {num_layers - 1}", param="layers")
    return sorted(set(layers))


def expand(
    points: Sequence[str],
    layers: Sequence[int] | str | None,
    hooks: Iterable[str],
    structure: ModelStructure,
) -> list[str]:
    """Canonical hook names of a capture spec, without repeats, in execution order.

    `{i}` in a hook stands for each layer, as in `model.layers.{i}.mlp.up_proj.output`. Layers without a point
    are skipped (the first layers of some mixture-of-experts models are dense). A layer that is listed by
    number must have it.

    Raises:
        UnknownHook: the model lacks a name, point or layer.
    """
    explicit = list(hooks)
    if not points and not explicit:
        points = ["resid_post"]
    names: dict[str, None] = {}
    chosen = select_layers(layers, structure.num_layers) if uses_layers(points, explicit) else []
    is_listed = isinstance(layers, Sequence) and not isinstance(layers, str)
    for point in points:
        if point in structure.unavailable:
            raise UnknownHook(f"{point}: {structure.unavailable[point]}", param="points")
        if point in MODEL_POINTS:
            if point not in structure.locations:
                raise UnknownHook(f"{point}: this architecture does not have it", param="points")
            names[point] = None
            continue
        found = [f"{point}.{i}" for i in chosen if f"{point}.{i}" in structure.locations]
        lacking = [f"{point}.{i}" for i in chosen if f"{point}.{i}" not in structure.locations]
        if lacking and (not found or is_listed):
            raise UnknownHook(f"{lacking[0]}: {_why_missing(lacking[0], structure)}", param="points")
        names.update(dict.fromkeys(found))
    names.update(dict.fromkeys(resolved(explicit, layers, structure).values()))
    order = {location: i for i, location in enumerate(structure.module_locations)}
    return sorted(names, key=lambda hook: order[structure.locations.get(hook, hook)])
