"""Which tokens run in the next step: the newest one of each row, and chunks of waiting prompts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from worker.engine.streaming.live import Live
from worker.engine.streaming.scores import scored_tokens
from worker.engine.streaming.step import Chunk, Step

#: tokens of prompts that a step takes at least, however many rows it has
_LEAST_CHUNK = 16


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


def step(pack: Pack, keys: Sequence[Tensor], values: Sequence[Tensor], device: torch.device) -> Step:
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
        slot_index=places[0],
        position_index=places[1],
    )
