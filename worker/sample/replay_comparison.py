"""Rows of a replay, compared with the rows of the stored session as they arrive."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from actograph import tensor_files
from actograph.contract.errors import ReplayDiffers
from actograph.contract.head_columns import columns_of
from actograph.contract.models import ModelStructure
from actograph.contract.readouts import is_readout
from actograph.contract.resources import RowDifference
from actograph.contract.row_selection import (
    ChosenFeatures,
    Features,
    FirstFeatures,
    HeadFeatures,
    consecutive,
)
from actograph.contract.saes import is_latents
from storage.sessions import selected_rows
from storage.sessions.reader import SessionReader
from worker.engine.messages import Rows
from worker.sample.provenance import Provenance

#: largest difference as a share of a hook's largest value, by dtype: of the model, or of the stored rows
TOLERANCES = {"float32": 1e-4, "float16": 1e-2, "bfloat16": 5e-2}
_DTYPES = {"F64": "float32", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
#: summaries in which small differences grow: a ratio of fourth powers, and a count of values over a limit
_UNSTABLE = ("kurtosis", "over")
_features: TypeAdapter[Features | None] = TypeAdapter(Features | None)


@dataclass(slots=True)
class _Largest:
    """The largest difference in the rows of one tensor."""

    tolerance: float
    rows: int = 0
    difference: float = 0.0
    #: token of the row with this difference
    token: int = 0
    scale: float = 0.0


class ReplayComparison:
    """Compares the tensors that both sessions have: the same place of the model, and the same tokens."""

    def __init__(self, reader: SessionReader, origin: Provenance, due: Sequence[int]) -> None:
        """
        Args:
            reader: of the stored session.
            origin: of the replay.
            due: tokens of the replay's rows, which its summaries reduce.
        """
        self._reader, self._origin, self._due = reader, origin, due
        #: tensor of the replay -> its summary
        self._kinds = {name: kind for hook in origin.hooks for name, kind in origin.tensor_names(hook)}
        self._hooks = {name: hook for hook in origin.hooks for name, _ in origin.tensor_names(hook)}
        #: tensor -> the tokens of its stored rows, ascending
        self._tokens: dict[str, NDArray[np.int64]] = {}
        self._largest: dict[str, _Largest] = {}

    def add(self, chunks: Mapping[str, Rows]) -> None:
        """Compare further rows. Raises StoreDamaged: the stored rows cannot be read."""
        for name, chunk in chunks.items():
            if chunk.count and self._is_common(name, chunk):
                self._compare(name, chunk)

    def finish(self) -> dict[str, RowDifference]:
        """The differences by tensor.

        Raises:
            ReplayDiffers: one is larger than its tolerance.
        """
        for name, one in self._largest.items():
            if not one.difference <= one.tolerance * one.scale:
                raise ReplayDiffers(
                    f"{name}: the row of token {one.token} differs from that of session "
                    f"{self._reader.session_id} by {one.difference:.4g}; the tolerance is "
                    f"{one.tolerance * one.scale:.4g}, {one.tolerance:g} of the largest value "
                    f"{one.scale:.4g}. "
                    "Check the session with `actograph store verify`, or set a larger tolerance"
                )
        return {
            name: RowDifference(
                rows=one.rows, difference=one.difference, scale=one.scale, tolerance=one.tolerance
            )
            for name, one in self._largest.items()
        }

    def _is_common(self, name: str, chunk: Rows) -> bool:
        if is_latents(self._hooks[name]) or is_readout(self._hooks[name]):
            return False  # the rows of its hook tell more: latents may change places, products may cancel
        manifest, hook, kind = self._reader.manifest, self._hooks[name], self._kinds[name]
        stored = manifest.tensors.get(name)
        if stored is None or stored.summary != kind or kind in _UNSTABLE:
            return False
        if stored.dtype not in _DTYPES or chunk.dtype not in _DTYPES:
            return False  # numbers of experts have no distance
        place = self._origin.structure.locations.get(hook, hook)
        if manifest.locations.get(hook, place) != place:
            return False  # a savepoint that was moved
        return kind is None or self._stored_tokens(name).tolist() == list(self._due)

    def _stored_tokens(self, name: str) -> NDArray[np.int64]:
        if name not in self._tokens:
            self._tokens[name] = np.asarray(self._reader.tokens_of_rows(name), dtype=np.int64)
        return self._tokens[name]

    def _compare(self, name: str, chunk: Rows) -> None:
        stored = self._reader.tensor_info(name)
        if chunk.over is not None:
            rows, places, tokens = [0], [0], [self._due[0]]
        else:
            tokens = list(chunk.tokens or range(chunk.first_row, chunk.first_row + chunk.count))
            _, found_places, found_rows = np.intersect1d(
                np.asarray(tokens, dtype=np.int64),
                self._stored_tokens(name),
                assume_unique=True,
                return_indices=True,
            )
            places, rows = found_places.tolist(), found_rows.tolist()
        ours, theirs = self._columns(name, chunk.width, stored.shape[1])
        if not rows or not ours:
            return
        numbers = np.concatenate(
            [tensor_files.numbers_of(chunk.dtype, _raw(piece, chunk.dtype)) for piece in chunk.pieces]
        )[places][:, ours]
        largest = self._largest.setdefault(name, _Largest(self._tolerance(chunk.dtype, stored.dtype)))
        done = 0
        for start, stop in consecutive(rows):
            mine = numbers[done : done + stop - start].astype(np.float64)
            other = selected_rows.read(self._reader, name, start, stop)[:, theirs].astype(np.float64)
            with np.errstate(invalid="ignore"):
                gaps = np.nan_to_num(np.abs(mine - other), nan=np.inf).max(axis=1)
            worst = int(gaps.argmax())
            if gaps[worst] > largest.difference:
                largest.difference, largest.token = float(gaps[worst]), tokens[places[done + worst]]
            largest.scale = max(largest.scale, float(np.abs(mine).max()))
            done += stop - start
        largest.rows += len(rows)

    def _columns(self, name: str, width: int, stored_width: int) -> tuple[list[int], list[int]]:
        """Columns of the same features: in the replay's rows, and in the stored ones."""
        ours, theirs = (
            chosen_columns(features, self._hooks[name], self._origin.structure) or range(count)
            for features, count in (
                (self._origin.capture.features, width),
                (_features.validate_python(self._reader.manifest.capture.get("features")), stored_width),
            )
        )
        places = {feature: place for place, feature in enumerate(theirs)}
        pairs = [(place, places[feature]) for place, feature in enumerate(ours) if feature in places]
        return [one for one, _ in pairs], [other for _, other in pairs]

    def _tolerance(self, *dtypes: str) -> float:
        if self._origin.tolerance is not None:
            return self._origin.tolerance
        coarsest = max(TOLERANCES.values())
        names = [self._origin.structure.dtype, *(_DTYPES[dtype] for dtype in dtypes)]
        return max(TOLERANCES.get(name, coarsest) for name in names)


def chosen_columns(features: Features | None, hook: str, structure: ModelStructure) -> Sequence[int] | None:
    """The columns of a hook that a capture keeps, in their order; None: all."""
    match features:
        case FirstFeatures():
            return range(features.first)
        case ChosenFeatures():
            return features.indices
        case HeadFeatures():
            return columns_of(features, hook, structure, "capture.features")
    return None


def _raw(piece: NDArray[np.uint8], dtype: str) -> tensor_files.Array:
    """Rows of bytes [rows, bytes of a row] as numbers in their stored form."""
    return tensor_files.raw_array(dtype, (len(piece), -1), np.ascontiguousarray(piece).tobytes())
