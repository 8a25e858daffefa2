"""Which tokens run in the next step: the newest one of each row, and chunks of waiting prompts.

Also which rows begin alike, so that attention reads that beginning for all of them at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from worker.engine.streaming.live import Live
from worker.engine.streaming.scores import scored_tokens
from worker.engine.streaming.slots import common_tokens
from worker.engine.streaming.step import Chunk, SharedPrefix, Step

#: tokens of prompts that a step takes at least, however many rows it has
_LEAST_CHUNK = 16
#: a prefix is read for several rows at once from so many tokens and rows on: fewer gain less than the merge
#: costs, see `python -m bench.streaming_kernels`
LEAST_TOKENS, LEAST_ROWS = 256, 4


@dataclass(frozen=True, slots=True)
class Part:
    """Consecutive tokens of one request in a pack."""

    live: Live
    start: int  # number of the first token
    stop: int
    first: int  # place of the first token in the pack
    kept: slice  # places of its tokens among those that reach the head; they are its last ones
    rows: int  # rows that may be captured

    @property
    def chooses(self) -> bool:
        """Whether a token is chosen after its last one."""
        return self.stop >= self.live.prompt

    def record(self) -> None:
        """Plan the capture of its tokens."""
        lane, record = self.live.lane, self.live.record
        if lane is None or record is None:
            return
        if self.start >= self.live.prompt:
            lane.take_generated(record, self.start, self.first, self.kept.start)
        else:
            last = self.kept.stop - 1 if self.chooses else None
            lane.take_prompt(record, self.start, self.stop, self.first, last)


@dataclass(frozen=True, slots=True)
class Pack:
    """Tokens of one step; rows that decode come first."""

    parts: Sequence[Part]
    kept: list[int]  # places of the tokens that reach the head
    tokens: int


class Cascades:
    """Groups of rows that share their first tokens, found anew when rows come or go.

    Keys and values of a common beginning are equal in all slots, but for rounding: requests with other edits,
    or with edits of chosen tokens, are left out.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._rows: list[Live] = []
        self._found: list[SharedPrefix] = []

    def of(self, rows: Sequence[Live]) -> list[SharedPrefix]:
        """Prefixes of decode rows in the order of the pack."""
        same = len(rows) == len(self._rows) and all(a is b for a, b in zip(rows, self._rows, strict=True))
        if not same:
            self._rows, self._found = list(rows), self._search(rows)
        return self._found

    def _search(self, rows: Sequence[Live]) -> list[SharedPrefix]:
        alike: dict[tuple[object, ...], list[int]] = {}
        for place, row in enumerate(rows):
            if row.prompt > LEAST_TOKENS and row.edits.signature is not None:
                key = (row.edits.signature, row.request.prompt_ids[:LEAST_TOKENS])
                alike.setdefault(key, []).append(place)
        return [self._shared(rows, places) for places in alike.values() if len(places) >= LEAST_ROWS]

    def _shared(self, rows: Sequence[Live], places: Sequence[int]) -> SharedPrefix:
        first = rows[places[0]]
        # a last prompt token may be edited in one request and stand in the middle of another
        tokens = min(rows[place].prompt - 1 for place in places)
        for place in places[1:]:
            tokens = min(tokens, common_tokens(first.request.prompt_ids, rows[place].request.prompt_ids))
        return SharedPrefix(places, torch.tensor(places, device=self._device), first.slot, tokens)


def plan(live: Sequence[Live], most: int, vocabulary: int) -> Pack:
    """Plan a step.

    Args:
        live: running requests; prompts are taken in this order.
        most: tokens in the pack.
        vocabulary: size, for prompts whose tokens are scored.
    """
    parts: list[Part] = []
    kept: list[int] = []
    place = 0

    def add(row: Live, count: int, rows: int) -> None:
        nonlocal place
        stop, before = row.computed + count, len(kept)
        if row.score is not None and row.computed < row.prompt:
            kept.extend(range(place, place + count))
        elif stop >= row.prompt:
            kept.append(place + count - 1)
        parts.append(Part(row, row.computed, stop, place, slice(before, len(kept)), rows))
        place += count

    for row in sorted((row for row in live if row.decodes), key=lambda row: row.slot):
        add(row, 1, 1)
    left = max(most - place, _LEAST_CHUNK)
    for row in live:
        if left <= 0:
            break
        if row.decodes or row.waits_for is not None:
            continue
        count = min(row.prompt - row.computed, left)
        if row.score is not None:
            count = min(count, scored_tokens(vocabulary))
        count, rows = _fitting(row, count)
        add(row, count, rows)
        left -= count
    return Pack(parts, kept, place)


def _fitting(row: Live, count: int) -> tuple[int, int]:
    """Tokens of a chunk whose rows fit in one place, and these rows."""
    if row.record is None:
        return count, 0
    tokens = row.record.kept.of_prompt(row.computed, row.computed + count)
    size = row.record.buffers.size
    if len(tokens) <= size:
        return count, len(tokens)
    return tokens[size] - row.computed, size


def inputs(pack: Pack, device: torch.device) -> dict[str, Any]:
    """Token ids and positions, [1, tokens]; no mask."""
    ids: list[int] = []
    positions: list[int] = []
    for part in pack.parts:
        live = part.live
        if part.start >= live.prompt:
            ids.append(live.generated[part.start - live.prompt])
        else:
            ids += live.request.prompt_ids[part.start : part.stop]
        positions += range(part.start, part.stop)
    both = torch.tensor([ids, positions], device=device)
    return {"input_ids": both[:1], "position_ids": both[1:], "attention_mask": None}


def step(
    pack: Pack,
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    cascades: Cascades,
    device: torch.device,
) -> Step:
    """Places of the pack's tokens in the slots."""
    rows = [part for part in pack.parts if part.start >= part.live.prompt]
    places = torch.tensor([[part.live.slot for part in rows], [part.start for part in rows]], device=device)
    return Step(
        keys=keys,
        values=values,
        slots=[part.live.slot for part in rows],
        lengths=[part.stop for part in rows],
        chunks=[
            Chunk(part.live.slot, part.start, part.first, part.first + part.stop - part.start)
            for part in pack.parts
            if part.start < part.live.prompt
        ],
        prefixes=cascades.of([part.live for part in rows]),
        slot_index=places[0],
        position_index=places[1],
    )
