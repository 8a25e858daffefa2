"""Cells of patch jobs, and their results: the metric of each cell, per pair and as means over pairs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field
from typing_extensions import override

from actograph.contract import hooks
from actograph.contract.base import Resource
from actograph.contract.errors import InvalidRequest
from actograph.contract.head_columns import columns_of, head_width
from actograph.contract.interventions import resolve_hook
from actograph.contract.job_specs import PatchSpec
from actograph.contract.models import ModelStructure
from actograph.contract.row_selection import HeadFeatures
from actograph.tables import Columns, describe, table

#: files of a pair's session: numbers of the pair in words, and its arrays
PAIR_FILE, ARRAYS_FILE = "pair.json", "patch.npz"
#: bytes of the rows that a pair puts into its cells, all in memory at once
MAX_ROW_BYTES = 256 << 20
#: lines of the table in the text of a result
_LINES = 20


class PatchedPair(Resource):
    """One pair of a patch job, the content of `pair.json`."""

    clean_session: str
    corrupted_session: str
    sample_index: int
    prompt_tokens: int = Field(description="Of the prompt that was read with patches.")
    answer: int | None = Field(None, description="Id of the token; null if the metric is a readout.")
    against: int | None = None
    answer_text: str = ""
    against_text: str | None = None
    clean: float = Field(description="Metric of the clean prompt as it is.")
    corrupted: float = Field(description="Metric of the corrupted prompt as it is.")
    is_defined: bool = Field(description="Whether both differ by more than rounding, so that effects exist.")
    points: list[str]
    layers: list[int]
    positions: list[str]
    heads: list[int] | None = None


class PatchedCell(Resource):
    """One point, layer, position and head, over all pairs that have it."""

    point: str
    layer: int
    position: str
    head: int | None = None
    effect: float | None = Field(
        None, description="Mean of (metric - corrupted) / (clean - corrupted); null without such a pair."
    )
    low: float | None = Field(None, description="Of its 95 % interval; null for a single pair.")
    high: float | None = None
    metric: float = Field(description="Mean of the metric.")
    pairs: int = Field(description="Pairs with an effect.")


class SkippedPair(Resource):
    """A pair without a result, and the reason."""

    clean_session: str
    corrupted_session: str
    reason: str


class PatchingResult(Resource):
    """The results of a patch job so far."""

    job_id: str
    status: str
    metric: str = Field(description="`log_probability`, `logit_difference`, or the stored name of a readout.")
    direction: Literal["denoise", "noise"]
    pairs: list[PatchedPair]
    skipped: list[SkippedPair] = Field([], description="The first 100.")
    skipped_pairs: int = 0
    points: list[str]
    layers: list[int]
    positions: list[str] = Field(description="Numbers of tokens, or names such as `prompt[3:6]`.")
    heads: list[int] | None = None
    cells: list[PatchedCell]

    @property
    def tables(self) -> dict[str, list[dict[str, Any]]]:
        """Lines of each table by its title, the largest effects first; without empty tables."""
        found = {
            "cells": [_cell(one) for one in self.ranked()],
            "pairs": [_pair(one) for one in self.pairs],
            "skipped pairs": [one.model_dump() for one in self.skipped],
        }
        return {title: lines for title, lines in found.items() if lines}

    def ranked(self) -> list[PatchedCell]:
        """The cells by the magnitude of their effects, the largest first."""
        return sorted(self.cells, key=lambda one: -abs(one.effect or 0.0))

    @override
    def __str__(self) -> str:
        parts = [
            describe(
                self,
                ["pairs", "skipped", "points", "layers", "positions", "heads", "cells"],
                pairs=len(self.pairs),
                cells=len(self.cells),
            )
        ]
        for title, lines in self.tables.items():
            columns: Columns = [(column, _getter(column)) for column in lines[0]]
            parts.append(f"{title}\n{table(columns, lines[:_LINES])}")
            if rest := len(lines[_LINES:]):
                parts.append(f"{rest} more {title} are in the result")
        return "\n\n".join(parts)


def _getter(column: str) -> Any:
    def get(line: Mapping[str, Any]) -> Any:
        return line.get(column)

    return get


def _cell(one: PatchedCell) -> dict[str, Any]:
    given = one.model_dump()
    return given if one.head is not None else {name: given[name] for name in given if name != "head"}


def _pair(one: PatchedPair) -> dict[str, Any]:
    shown: Sequence[str] = ("sample_index", "clean_session", "corrupted_session", "clean", "corrupted")
    texts: dict[str, Any] = {} if one.answer is None else {"answer": one.answer_text or one.answer}
    if one.against is not None:
        texts["against"] = one.against_text or one.against
    return {name: getattr(one, name) for name in shown} | texts


@dataclass(frozen=True, kw_only=True)
class PatchGrid:
    """Cells of a patch job, but for their positions.

    Attributes:
        hooks: names of hooks that exist, by point and layer.
        heads: numbers of heads; None for whole rows.
    """

    points: tuple[str, ...]
    layers: tuple[int, ...]
    hooks: Mapping[tuple[str, int], str]
    heads: tuple[int, ...] | None

    @property
    def cells(self) -> int:
        """Cells of one position."""
        return len(self.hooks) * len(self.heads or [None])


def grid_of(spec: PatchSpec, structure: ModelStructure) -> PatchGrid:
    """The points, layers and heads of a model.

    Raises:
        UnknownHook: the model lacks a point or a layer, or the point can only be read.
        InvalidRequest: the points have not the same heads, or not all of these.
    """
    names = hooks.expand(spec.points, spec.layers, (), structure)
    heads: dict[str, list[int]] = {}
    for name in names:
        resolve_hook(name, structure, "points")
        if spec.heads is None:
            continue
        width, info = head_width(name, structure), structure.tensor_of(name)
        if width is None or info is None:
            raise InvalidRequest(f"{name} has no heads; patch whole rows, without heads", param="heads")
        heads[name] = list(range(info.width // width)) if spec.heads == "all" else list(spec.heads)
        columns_of(HeadFeatures(heads=heads[name]), name, structure, "heads")
    first = next(iter(heads.items()), None)
    for name, found in heads.items():
        if first is not None and found != first[1]:
            raise InvalidRequest(
                f"{name} has {len(found)} heads, and {first[0]} {len(first[1])}; patch them in jobs of their "
                "own, or name the heads",
                param="heads",
            )
    return _grid(spec, names, None if first is None else tuple(first[1]))


def grid_among(spec: PatchSpec, stored: Iterable[str]) -> PatchGrid:
    """The points and layers that sessions store, for a model that is unknown; its heads are unknown too."""
    chosen = [name for name in stored if hooks.point_of(name) in spec.points]
    layers = sorted({layer for name in chosen if (layer := hooks.layer_of(name)) is not None})
    if layers:
        kept = hooks.select_layers(spec.layers, max(layers) + 1)
        chosen = [name for name in chosen if hooks.layer_of(name) in kept]
    return _grid(spec, chosen, tuple(spec.heads) if isinstance(spec.heads, list) else None)


def _grid(spec: PatchSpec, names: Iterable[str], heads: tuple[int, ...] | None) -> PatchGrid:
    places = {(hooks.point_of(name), hooks.layer_of(name)): name for name in names}
    return PatchGrid(
        points=tuple(spec.points),
        layers=tuple(sorted({layer for _, layer in places if layer is not None})),
        hooks={(point, layer): name for (point, layer), name in places.items() if layer is not None},
        heads=heads,
    )


def places_of(spec: PatchSpec, prompt_tokens: int) -> dict[str, list[int]]:
    """Tokens of each position in a prompt of so many tokens, by its name.

    Raises:
        InvalidRequest: the prompt has not these tokens.
    """
    if spec.positions == "all":
        return {str(token): [token] for token in range(prompt_tokens)}
    found = {}
    for given in spec.positions:
        tokens = list(range(prompt_tokens))
        if isinstance(given, int):
            tokens = [one for one in (given, given + prompt_tokens) if 0 <= one < prompt_tokens][:1]
        elif "[" in given:
            tokens = tokens[_window(given)]
        if not tokens:
            raise InvalidRequest(
                f"the prompt has {prompt_tokens} tokens, and no token {given}", param="positions"
            )
        found[str(given)] = tokens
    return found


def count_from_the_end(spec: PatchSpec) -> bool:
    """Whether all positions count from the end of the prompt, so that prompts of other lengths correspond."""

    def late(one: int | str) -> bool:
        if isinstance(one, int):
            return one < 0
        window = _window(one) if "[" in one else slice(None)
        return (window.start or 0) < 0 and (window.stop is None or window.stop < 0)

    return spec.positions != "all" and all(late(one) for one in spec.positions)


def _window(text: str) -> slice:
    """The slice of `prompt[3:6]` or `prompt[-1]`."""
    numbers = [int(part) if part else None for part in text.partition("[")[2].rstrip("]").split(":")]
    if len(numbers) > 1:
        return slice(*numbers)
    first = numbers[0] or 0
    return slice(first, first + 1 or None)
