"""The hooks of a session that have a row for each token, as viewers offer them."""

from collections.abc import Mapping

from actograph.contract import hooks
from actograph.contract.readouts import is_readout
from actograph.contract.resources import TensorInfo
from actograph.latents import with_latents


def points_of(stored: Mapping[str, TensorInfo]) -> dict[str, list[str]]:
    """The hooks of each point, the first layer first. Latents and readouts are points too."""
    points: dict[str, list[str]] = {}
    tensors = with_latents(stored)
    for name in sorted(tensors, key=lambda name: hooks.layer_of(name) or 0):
        info = tensors[name]
        if info.summary is None and info.shape[0]:
            points.setdefault(hooks.point_of(name), []).append(name)
    return points


def first_shown(points: Mapping[str, list[str]]) -> str | None:
    """The hook that a viewer shows first: the middle layer of the residual stream, or of another point.

    Readouts come last. Returns None if there is no hook.
    """
    layers = points.get("resid_post")
    if layers is None:
        ordered = sorted(points.values(), key=lambda names: is_readout(names[0]))
        layers = next(iter(ordered), None)
    return None if layers is None else layers[(len(layers) - 1) // 2]


def heads_of(stored: Mapping[str, TensorInfo]) -> list[int]:
    """The layers whose queries and keys are stored row by row, so that attention may be computed."""
    have = [name for name, info in stored.items() if info.summary is None and info.shape[0]]
    layers = {layer for name in have if (layer := hooks.layer_of(name)) is not None}
    return sorted(layer for layer in layers if f"q.{layer}" in have and f"k.{layer}" in have)
