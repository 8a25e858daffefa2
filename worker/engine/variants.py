"""Variants of a prompt: it is read again with other rows at some hooks, and only from where these begin.

A change of a token at a layer cannot reach earlier tokens, nor earlier layers. So a variant takes over the
keys and values of the tokens before its first edit, and what the layers before it gave to its other tokens:
the request has read its prompt once, and holds them.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from actograph.contract.errors import InvalidRequest
from actograph.contract.row_selection import TokenRange
from evals.plans import STEP_TOKENS
from worker.engine.edits import CHANGED_NUMBERS, Change, PlannedChange, SlotEdits
from worker.engine.locations import ModelHooks
from worker.engine.messages import Edit, Request

#: bytes of outputs of layers that a request holds, at most
_MOST_HELD = 256 << 20
#: scores of attention of a pass, at most, unless a single variant has more
_MOST_SCORES = 1 << 24


@dataclass(frozen=True, slots=True)
class Variant:
    """A variant that is still to be read.

    Attributes:
        number: among the request's variants.
        first: token from which on it is read.
        skipped: first layers that are not run.
    """

    number: int
    first: int
    skipped: int
    edits: tuple[Edit, ...]


class SlotVariants:
    """The variants of one request.

    Args:
        room: bytes for the outputs of layers.

    Attributes:
        left: not read yet; those that begin at one layer follow each other.
        cached: tokens that are not read anew, of all variants; less those of the first reading.
    """

    def __init__(self, request: Request, hooks: ModelHooks, room: int = _MOST_HELD) -> None:
        structure = hooks.structure
        self._request, self._hooks = request, hooks
        self._prompt = prompt = len(request.prompt_ids)
        self._order = {location: i for i, location in enumerate(structure.module_locations)}
        path = hooks.model.layers_path
        self._ends = [self._order[f"{path}.{layer}.output"] for layer in range(structure.num_layers)]
        heads = int(getattr(hooks.model.text_config, "num_attention_heads", 1) or 1)
        self._most_tokens = _MOST_SCORES // (heads * prompt)
        places = [(min(map(_token, one)), self._skipped(one)) for one in request.variants]
        row_bytes = prompt * structure.hidden_size * hooks.model.dtype.itemsize
        needed = sorted({skipped for _, skipped in places} - {0})
        most = max(1, min(room, _MOST_HELD) // row_bytes)
        begins = [0, *needed[:: -(-len(needed) // most) or 1]]  # the others begin at an earlier layer
        self.left = sorted(
            (
                Variant(number, first, begins[bisect_right(begins, skipped) - 1], edits)
                for number, (edits, (first, skipped)) in enumerate(zip(request.variants, places, strict=True))
            ),
            key=lambda one: (one.skipped, one.first),
        )
        self._held = {layers - 1: _LayerOutput(prompt, structure.hidden_size) for layers in begins[1:]}
        self.bytes = row_bytes * len(self._held)
        self.cached = max(0, sum(first for first, _ in places) - prompt)

    def _skipped(self, edits: Sequence[Edit]) -> int:
        """Layers before the first edit."""
        first = min(self._order[self._hooks.edited_at(edit.hook)] for edit in edits)
        return bisect_right(self._ends, first)

    def take(self, most: int) -> list[Variant]:
        """Take the variants of the next pass: up to `most` tokens, but one variant at least."""
        most, tokens, count = min(most, self._most_tokens), 0, 0
        for one in self.left:
            tokens += self._prompt - one.first
            if count and (tokens > most or one.skipped != self.left[0].skipped):
                break
            count += 1
        taken, self.left = self.left[:count], self.left[count:]
        return taken

    def put_back(self, variants: Sequence[Variant]) -> None:
        """Read these later, since their pass has failed."""
        self.left = [*variants, *self.left]

    def changes(self, variants: Sequence[Variant], own: SlotEdits | None) -> list[PlannedChange]:
        """The changes in a pass of these variants: first the request's own edits, then theirs.

        Args:
            variants: that begin at one layer; the pass has the tokens of each, one variant after the other.
        """
        last, tensors = self._prompt - 1, self._hooks.structure.module_tensors
        begin = self._ends[variants[0].skipped - 1] if variants[0].skipped else -1
        made: dict[tuple[int, Change], list[int]] = {}
        rows: dict[tuple[str, tuple[int, ...] | None], list[tuple[int, NDArray[np.float32]]]] = {}
        start = 0
        for number, variant in enumerate(variants):

            def places(location: str, tokens: Sequence[int], number: int = number, at: int = start) -> Any:
                if tensors[location].tail_only:
                    return [number for token in tokens if token == last]
                return [at + token for token in tokens]

            start -= variant.first
            for write in () if own is None else own.writes(variant.first, self._prompt):
                if (order := self._order[write.location]) >= begin:
                    made.setdefault((order, write.change), []).extend(
                        places(write.location, write.tokens, at=start)
                    )
            for edit in variant.edits:
                location = self._hooks.edited_at(edit.hook)
                assert edit.vector is not None
                for place in places(location, [_token(edit)], at=start):
                    rows.setdefault((location, edit.columns), []).append((place, edit.vector))
            start += self._prompt
        changes: list[PlannedChange] = [
            (order, change, found) for (order, change), found in made.items() if found
        ]
        for (location, columns), pairs in rows.items():
            pairs.sort(key=lambda pair: pair[0])
            size = max(1, CHANGED_NUMBERS // self._hooks.widths[location])
            for at in range(0, len(pairs), size):
                some = pairs[at : at + size]
                matrix = np.stack([row for _, row in some])
                change = Change("replace", 1.0, matrix, self._hooks.model.devices, columns=columns)
                changes.append((self._order[location], change, [place for place, _ in some]))
        return changes

    def rows_at(self, variants: Sequence[Variant], location: str, token: int) -> dict[int, int]:
        """Places of a token's rows in a location's tensor, by the numbers of the variants that compute it."""
        skipped, last = variants[0].skipped, self._prompt - 1
        if skipped and self._order[location] < self._ends[skipped - 1]:
            return {}
        is_tail = self._hooks.structure.module_tensors[location].tail_only
        found, start = dict[int, int](), 0
        for number, variant in enumerate(variants):
            if is_tail and token == last:
                found[variant.number] = number
            elif not is_tail and token >= variant.first:
                found[variant.number] = start + token - variant.first
            start += self._prompt - variant.first
        return found

    def hold(self, start: int, first: int, count: int, layers: nn.ModuleList) -> list[Any]:
        """Let the next pass keep what layers give to tokens of the prompt, before anything changes it.

        Args:
            start: number of the first token.
            first: its place in the pass.

        Returns: torch's handles.
        """

        def hook(held: _LayerOutput) -> Any:
            def keep(_: nn.Module, __: Any, output: Any) -> None:
                held.keep(output, start, first, count)

            return keep

        return [
            layers[layer].register_forward_hook(hook(held), prepend=True)
            for layer, held in self._held.items()
        ]

    @contextmanager
    def skipping(self, variants: Sequence[Variant], layers: nn.ModuleList) -> Iterator[None]:
        """Let the layers before these variants give what they gave to the same tokens."""
        skipped = variants[0].skipped
        if not skipped:
            yield
            return
        numbers = np.concatenate([np.arange(one.first, self._prompt) for one in variants])
        given = self._held[skipped - 1].given(torch.from_numpy(numbers))

        def forward(*_: Any, **__: Any) -> Any:
            return given

        modules: list[Any] = list(layers[:skipped])
        before = [vars(module).get("forward") for module in modules]
        try:
            for module in modules:
                module.forward = forward
            yield
        finally:
            for module, own in zip(modules, before, strict=True):
                if own is None:
                    vars(module).pop("forward", None)
                else:
                    module.forward = own


class _LayerOutput:
    """The output of one layer for the tokens of a prompt, in the host's memory."""

    def __init__(self, tokens: int, width: int) -> None:
        self._shape = tokens, width
        self._rows: Tensor | None = None
        self._device = torch.device("cpu")
        self._parts = 0  # of the tuple that the layer returns; 0: it returns the tensor itself

    def keep(self, output: Any, start: int, first: int, count: int) -> None:
        self._parts = len(output) if isinstance(output, tuple) else 0
        rows: Tensor = output[0] if self._parts else output
        self._device = rows.device
        if self._rows is None:
            self._rows = torch.empty(self._shape, dtype=rows.dtype)
        self._rows[start : start + count] = rows.reshape(-1, self._shape[1])[first : first + count]

    def given(self, tokens: Tensor) -> Any:
        """The layer's output for these tokens, in the form in which it returns it."""
        assert self._rows is not None
        rows = self._rows[tokens][None].to(self._device)
        return (rows, *[None] * (self._parts - 1)) if self._parts else rows


def check_variants(request: Request, hooks: ModelHooks) -> None:
    """Refuse variants that cannot be read.

    Raises:
        InvalidRequest: the request does more than to read its prompt, or an edit is not one of a token's row.
        UnknownHook: the model has no such hook.
    """
    prompt = len(request.prompt_ids)
    wanted = request.next_tokens or request.value_at is not None
    if request.most_generated or not wanted or request.score_prompt or request.capture is not None:
        raise InvalidRequest(
            f"{request.key}: only prompts that are read for next_tokens or a value have variants"
        )
    for edits in request.variants:
        places = [(hooks.edited_at(edit.hook), edit.columns, _token(edit)) for edit in edits]
        bad = next(
            (
                edit
                for edit in edits
                if (edit.op, edit.coefficient, edit.rule, edit.after) != ("replace", 1.0, None, None)
                or edit.vector is None
                or not 0 <= _token(edit) < prompt
            ),
            None,
        )
        if bad is not None or not edits or len(set(places)) < len(places):
            raise InvalidRequest(
                f"{request.key}: a variant replaces rows of single tokens of the prompt, each of them once"
            )
        if prompt - min(map(_token, edits)) > STEP_TOKENS:
            raise InvalidRequest(
                f"{request.key}: a variant may change the last {STEP_TOKENS} tokens of a prompt, and one "
                f"begins at token {min(map(_token, edits))} of {prompt}"
            )


def _token(edit: Edit) -> int:
    """The token that an edit changes; -1 if it does not change one alone."""
    positions = edit.positions
    if isinstance(positions, TokenRange) and positions.stop == positions.start + 1:
        return positions.start
    return -1
