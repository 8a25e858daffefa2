"""Columns of heads: from numbers of heads to columns of `q`, `k`, `v` and `z`."""

from collections.abc import Sequence

from actograph.contract.errors import InvalidRequest
from actograph.contract.hooks import layer_of, point_of
from actograph.contract.models import ModelStructure
from actograph.contract.row_selection import HeadFeatures

#: points with heads; of keys and values, these are key heads
HEAD_POINTS = ("q", "k", "v", "z")


def head_width(hook: str, structure: ModelStructure) -> int | None:
    """Columns of a head of this hook. Returns None if it has no heads."""
    layer = layer_of(hook)
    known = None if layer is None or point_of(hook) not in HEAD_POINTS else structure.attention.get(layer)
    return None if known is None else known.width


def columns_of(
    features: HeadFeatures | None, hook: str, structure: ModelStructure, param: str
) -> tuple[int, ...] | None:
    """Columns of these heads of a hook, head by head in the order given; None stands for all columns.

    Raises:
        InvalidRequest: the hook has no heads, or not all of these.
    """
    if features is None:
        return None
    width, info = head_width(hook, structure), structure.tensor_of(hook)
    if width is None or info is None:
        raise InvalidRequest(
            f"{hook} has no heads. Only q, k, v and z have them; name other columns by first or indices",
            param=param,
        )
    count = info.width // width
    if max(features.heads) >= count:
        kind = "key heads" if point_of(hook) in ("k", "v") else "heads"
        raise InvalidRequest(
            f"{hook} has {kind} 0 to {count - 1}; the spec asks for head {max(features.heads)}", param=param
        )
    return tuple(head * width + column for head in features.heads for column in range(width))


def common_columns(
    features: HeadFeatures, hooks: Sequence[str], structure: ModelStructure, param: str
) -> tuple[int, ...]:
    """Columns of these heads, which are the same in all hooks of a capture.

    Raises:
        InvalidRequest: see `columns_of`; or the heads of two hooks differ in width.
    """
    every = {hook: columns_of(features, hook, structure, param) or () for hook in hooks}
    first = next(iter(every))
    for hook, columns in every.items():
        if columns != every[first]:
            raise InvalidRequest(
                f"a head of {hook} has {head_width(hook, structure)} columns, one of {first} "
                f"{head_width(first, structure)}; capture them in jobs of their own",
                param=param,
            )
    return every[first]
