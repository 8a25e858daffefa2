"""Interventions in packed steps: each row's edits are written to its own tokens."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from actograph.contract.interventions import TokenRange
from worker.engine.edits.interventions import Change, FollowedChoice, change_of, changed
from worker.engine.locations import ModelHooks, Place, place_of
from worker.engine.requests import Edit, GenerationRequest
from worker.engine.streaming.capture.modules import at_module, tokens_first

#: key of edits that share a prefix's keys and values; None: they share with nobody
Signature = tuple[object, ...] | None


class RowEdits:
    """Edits of one request.

    Args:
        generated: live view of its generated ids, for choosers.
    """

    def __init__(self, request: GenerationRequest, hooks: ModelHooks, generated: Sequence[int]) -> None:
        self._prompt = len(request.prompt_ids)
        self.edits = [
            (hooks.edited_at(edit.hook), edit, _followed(edit, request, generated))
            for edit in request.edits
            if not edit.changes_nothing
        ]

    def __bool__(self) -> bool:
        return bool(self.edits)

    @property
    def signature(self) -> Signature:
        """Equal for requests whose edits change common tokens of their prompts alike."""
        if any(choice is not None for _, _, choice in self.edits):
            return None
        return tuple(edit.kind for _, edit, _ in self.edits)

    def tokens(self, edit: Edit, choice: FollowedChoice | None, start: int, stop: int) -> Sequence[int]:
        """Tokens to change among `start` to `stop - 1`, all in the prompt or all generated."""
        if start >= self._prompt:
            return [t for t in range(start, stop) if self._changes_generated(edit, choice, t)]
        positions = edit.positions
        if choice is not None:
            return [t for t in choice.in_prompt if start <= t < stop]
        if isinstance(positions, TokenRange):
            end = stop if positions.stop is None else min(stop, positions.stop)
            return range(max(start, positions.start), end)
        if positions == "last_prompt":
            return range(max(start, self._prompt - 1), stop)
        return () if positions == "generated" else range(start, stop)

    def _changes_generated(self, edit: Edit, choice: FollowedChoice | None, token: int) -> bool:
        if choice is not None:
            return choice.holds(token - self._prompt)
        if isinstance(edit.positions, TokenRange):
            return edit.positions.holds(token)
        return edit.positions in ("all", "generated")


def _followed(edit: Edit, request: GenerationRequest, generated: Sequence[int]) -> FollowedChoice | None:
    return None if edit.chooser is None else FollowedChoice(edit.chooser, request.prompt_ids, generated)


class _Write(NamedTuple):
    """One change of some tokens of the pack."""

    change: Change
    tokens: list[int]


class StepEditor:
    """Writes the edits of all rows at their locations, in the forward pass.

    A location gets its hook when the first edit needs it. The hook stands before those that read, so that
    captured rows are the changed ones.
    """

    def __init__(self, hooks: ModelHooks) -> None:
        self._hooks = hooks
        self._handles: dict[str, Any] = {}
        #: the edit is kept with its change: its kind holds the id of its vector
        self._changes: dict[tuple[object, ...], tuple[Edit, Change]] = {}
        #: location -> (place in the request's list, kind) -> tokens
        self._writes: dict[str, dict[tuple[int, tuple[object, ...]], _Write]] = {}
        self._kept: dict[int, int] | None = None
        self._tokens = 0

    def begin(self, tokens: int, kept: Sequence[int]) -> None:
        """Start a step.

        Args:
            tokens: length of the pack.
            kept: places of the tokens that reach the head.
        """
        self._writes.clear()
        self._tokens = tokens
        self._kept = {place: i for i, place in enumerate(kept)}

    def add(self, own: RowEdits, start: int, stop: int, first: int) -> None:
        """Plan the edits of one request's tokens `start` to `stop - 1`, which lie from `first` on."""
        for place, (location, edit, choice) in enumerate(own.edits):
            tokens = [first + t - start for t in own.tokens(edit, choice, start, stop)]
            if not tokens:
                continue
            if location not in self._handles:
                self._handles[location] = self._register(location)
            writes = self._writes.setdefault(location, {})
            write = writes.setdefault((place, edit.kind), _Write(self._change(edit), []))
            write.tokens.extend(tokens)

    def close(self) -> None:
        for handle in self._handles.values():
            handle.remove()
        self._handles.clear()
        self._changes.clear()

    def _change(self, edit: Edit) -> Change:
        if edit.kind not in self._changes:
            self._changes[edit.kind] = (edit, change_of(edit))
        return self._changes[edit.kind][1]

    def _register(self, location: str) -> Any:
        place: Place = place_of(location)
        module = self._hooks.model.hf.get_submodule(place.path)
        tail_only = self._hooks.structure.module_tensors[location].tail_only
        take: Callable[[Any], None] = lambda value: self._write(location, value, tail_only)  # noqa: E731
        return at_module(module, place, take, first=True)

    def _write(self, location: str, value: Any, tail_only: bool) -> None:
        writes = self._writes.get(location)
        if not writes:
            return
        assert self._kept is not None
        count = len(self._kept) if tail_only else self._tokens
        rows = tokens_first(value, count, location, flat=location in self._hooks.flat)
        for _, write in sorted(writes.items(), key=lambda item: item[0][0]):
            tokens = write.tokens
            if tail_only:
                tokens = [self._kept[t] for t in tokens if t in self._kept]
            _apply(rows, tokens, write.change)


def _apply(rows: Tensor, tokens: Sequence[int], change: Change) -> None:
    """Write to `rows` [tokens, ...] in place."""
    if len(tokens) == len(rows):
        rows.copy_(changed(rows, change))
    elif tokens:
        index = torch.tensor(tokens, device=rows.device)
        rows[index] = changed(rows[index], change)
