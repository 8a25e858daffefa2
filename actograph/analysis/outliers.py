"""Outliers of arrays in memory or in a file, named by layer."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actograph.analysis.files import read_arrays, read_metadata
from actograph.analysis.outlier_features import OutlierRule
from actograph.analysis.outlier_sums import OutlierSums, RowOrigin
from actograph.contract import hooks
from actograph.contract.errors import InvalidDataset

Array = NDArray[Any]
_NUMBER = re.compile(r"\d+")
_LAYER_NUMBER = re.compile(r"(?<![a-z])(?:layers?|blocks?|h)[\s._\[-]?(\d+)", re.IGNORECASE)
_LAYER_WORD = re.compile(r"(?<![a-z])layers?(?![a-z])", re.IGNORECASE)
#: of a router, but neither counted nor summed up
_WEIGHTS = "expert_weights"
#: arrays of a file of packed texts that are no activations; see `JobHandle.write_arrays`
_SEGMENTS, _TOKENS, _METADATA = "segment_ids", "token_ids", "metadata"


def outliers_of_file(path: Path, rule: OutlierRule | None = None, **options: Any) -> dict[str, Any]:
    """Find the outliers of the arrays in a .npz or .safetensors file; see `outliers_of_arrays`.

    Raises:
        InvalidDataset: the file cannot be read, or names or shapes do not fit together.
    """
    return outliers_of_arrays(read_arrays(path), rule, metadata=read_metadata(path), **options)


def outliers_of_arrays(
    arrays: Mapping[str, Array],
    rule: OutlierRule | None = None,
    *,
    together: bool = False,
    massive_magnitude: float = 100.0,
    massive_ratio: float = 1000.0,
    metadata: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Find outlier features and massive activations, and sum up moments and the use of experts.

    The number after `layer`, `block` or `h` is the layer, or the first number of the name; the rest is the
    point, such as `ln_attn` of `layer_3_ln_attn`. Names with `router_logits` and `expert_indices` belong to
    routers. Arrays that `JobHandle.write_arrays` wrote give the same numbers as an `outliers` job:
    `segment_ids` tells texts from padding, and hooks without a layer are left out.

    Args:
        arrays: name -> [positions, width] or [batch, sequence, width].
        rule: thresholds and reading of the positions; None for those of the paper.
        together: count the points of a layer together.
        metadata: metadata of the file that the arrays were read from.

    Returns:
        `outlier_features`, `massive_activations`, `arrays` (moments by name), `experts`, and the names that
        were `left_out`. The median magnitudes are those of `MassiveCandidates`.

    Raises:
        InvalidDataset: names or shapes do not fit together, or a name has no layer.
    """
    layout = _Activations.of(arrays, metadata)
    rows = {name: layout.rows(name, arrays[name]) for name in layout.places}
    try:
        sums = OutlierSums(
            layout.places, rule or OutlierRule(), together=together, massive_magnitude=massive_magnitude
        )
        sums.add_layers(rows)
    except ValueError as error:
        raise InvalidDataset(str(error)) from None
    for name in sums.moments:
        start = 0
        for text, count in layout.texts(arrays[name]):
            sums.add_values(name, rows[name][start : start + count], text, range(count))
            start += count
    massive = []
    for activation in sums.massive(massive_ratio):
        fields = activation.as_dict()
        origin = layout.origin(fields.pop("source"), fields.pop("position"))
        massive.append({"array": fields.pop("hook")} | origin | fields)
    return {
        "positions": sums.rule.positions,
        "outlier_features": list(sums.features()),
        "massive_activations": massive,
        "arrays": {name: sums.values_of(name) for name in sums.moments},
        "experts": sums.use_of_experts(),
        "left_out": layout.left_out,
    }


@dataclass(frozen=True, kw_only=True)
class _Activations:
    """The activations among some arrays, and the text of each of their rows."""

    #: of each array that is not left out
    places: Mapping[str, RowOrigin]
    left_out: Sequence[str]
    #: [batch, sequence]: number of the text from 1, or 0 for padding; None if all places hold a row
    segments: Array | None
    #: session of each text, and its rows' tokens as [start, stop) ranges; empty if unknown
    sessions: Sequence[str]
    ranges: Sequence[Sequence[tuple[int, int]]]

    @classmethod
    def of(cls, arrays: Mapping[str, Array], metadata: Mapping[str, str] | None) -> "_Activations":
        about = metadata or _stored_metadata(arrays)
        hook_of = _field(about, "hooks", {})
        segments = arrays.get(_SEGMENTS)
        if segments is not None and (
            segments.dtype.kind not in "iu" or (segments.size and segments.min() < 0)
        ):
            raise InvalidDataset(f"{_SEGMENTS} must be integers: numbers of texts from 1, and 0 for padding")
        aside = {_METADATA} if about and _METADATA in arrays else set()
        if segments is not None:
            aside |= {_SEGMENTS, _TOKENS}
        places: dict[str, RowOrigin] = {}
        taken: set[tuple[str, int]] = set()
        left_out = []
        for name in arrays:
            if name in aside:
                continue
            place = _place_of_hook(hook_of[name]) if name in hook_of else _place(name)
            if place is None or _WEIGHTS in name:
                left_out.append(name)
                continue
            if place in taken:
                raise InvalidDataset(
                    f"{name}: another array is layer {place[1]} of {place[0] or 'the model'} too"
                )
            taken.add(place)
            places[name] = RowOrigin(*place, width=arrays[name].shape[-1] if arrays[name].ndim else 0)
        if not places:
            raise InvalidDataset("no array holds the rows of a layer")
        return cls(
            places=places,
            left_out=left_out,
            segments=segments,
            sessions=_field(about, "session_ids", []),
            ranges=_field(about, "positions", []),
        )

    def rows(self, name: str, array: Array) -> Array:
        """The rows of an array in the order of its places, [positions, width]; padding is left out."""
        if array.ndim not in (2, 3):
            raise InvalidDataset(
                f"{name} has shape {list(array.shape)}; needed is [positions, width] or "
                "[batch, sequence, width]"
            )
        if array.dtype.kind not in "iuf":
            raise InvalidDataset(f"{name} has dtype {array.dtype}; numbers are needed")
        if self.segments is None:
            return array.reshape(-1, array.shape[-1])
        if array.shape[:-1] != self.segments.shape:
            raise InvalidDataset(
                f"{name} has shape {list(array.shape)}, and {_SEGMENTS} {list(self.segments.shape)}; they "
                "must agree in all but the width"
            )
        return np.asarray(array[self.segments > 0])

    def texts(self, array: Array) -> Iterator[tuple[int, int]]:
        """Number of each text from 0, or of each sequence, and of its rows, in the order of `rows`."""
        if self.segments is None:
            length = array.shape[-2]
            count = array.size // (length * array.shape[-1]) if array.size else 0
            return ((sequence, length) for sequence in range(count))
        numbers, counts = np.unique(self.segments[self.segments > 0], return_counts=True)
        # `write_arrays` keeps the texts in order
        kept = self.segments[self.segments > 0]
        if not np.array_equal(np.repeat(numbers, counts), kept):
            raise InvalidDataset(f"{_SEGMENTS} must hold the texts one after the other, in their order")
        return zip((numbers - 1).tolist(), counts.tolist(), strict=True)

    def origin(self, text: int, row: int) -> dict[str, Any]:
        """Names of the text and of the place of one of its rows."""
        if self.segments is None:
            return {"sequence": text, "position": row}
        token = row
        for start, stop in self.ranges[text] if text < len(self.ranges) else ():
            if row < stop - start:
                token = start + row
                break
            row -= stop - start
        named = {"session_id": self.sessions[text]} if text < len(self.sessions) else {"text": text + 1}
        return named | {"position": token}


def _stored_metadata(arrays: Mapping[str, Array]) -> Mapping[str, str]:
    """The metadata that an .npz file of `write_arrays` keeps as an array."""
    stored = arrays.get(_METADATA)
    if stored is None or stored.ndim or stored.dtype.kind != "U":
        return {}
    try:
        about = json.loads(str(stored))
    except ValueError:
        return {}
    return about if isinstance(about, dict) else {}


def _field(metadata: Mapping[str, str], name: str, default: Any) -> Any:
    """A field of the metadata of `write_arrays`, which is JSON; the default for other programs' metadata."""
    try:
        value = json.loads(metadata[name])
    except (KeyError, ValueError):
        return default
    return value if isinstance(value, type(default)) else default


def _place_of_hook(hook: str) -> tuple[str, int] | None:
    """Point and layer of a stored hook; None if it has no layer, as an `outliers` job leaves it out."""
    layer = hooks.layer_of(hook)
    return None if layer is None else (hooks.point_of(hook), layer)


def _place(name: str) -> tuple[str, int]:
    """Point and layer of an array's name. Raises InvalidDataset if it has no number."""
    found = _LAYER_NUMBER.search(name)
    start, stop = found.span(1) if found else (match.span() if (match := _NUMBER.search(name)) else (0, 0))
    if start == stop:
        raise InvalidDataset(
            f"the name {name!r} has no layer number; leave this array out, or name it as in layer_3_ln_attn"
        )
    rest = _LAYER_WORD.sub("", f"{name[:start].rstrip('._-[')} {name[stop:].lstrip('._-]')}")
    return re.sub(r"[\s._-]+", "_", rest).strip("_"), int(name[start:stop])
