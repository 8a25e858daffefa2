"""Rows of one running request: which tokens it keeps, where they lie, and shards for the sink."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from worker.engine.requests import GenerationRequest, Positions, RowChooser, RowChunk, RowShaping
from worker.engine.rows.row_writer import expected_rows, stored_dtype
from worker.engine.rows.summaries import Summaries
from worker.engine.streaming.capture.buffers import Group, HeldRows, RowBuffers, Segment


class Shard(NamedTuple):
    """Rows of a place on their way to the sink."""

    key: str
    chunks: Callable[[], dict[str, RowChunk]]  # called once, off the decode thread
    free: Callable[[], None]  # gives the place back; called last
    is_shared: bool = False  # rows of a beginning that others hold too; they stay as they are


class Kept:
    """Selection of one request's tokens.

    Args:
        generated: live view of its generated ids.
    """

    def __init__(
        self,
        request: GenerationRequest,
        positions: Positions,
        chooser: RowChooser | None,
        generated: Sequence[int],
    ) -> None:
        self.positions: Positions = positions
        self.prompt = len(request.prompt_ids)
        self._generated = generated
        self.in_prompt: tuple[int, ...] | None = None
        if chooser is not None:
            self.in_prompt = tuple(chooser.of_prompt(request.prompt_ids))
            self._judge = chooser.of_generation(request.prompt_ids)

    @property
    def chosen(self) -> bool:
        """Whether a chooser selects, so that rows need not be consecutive."""
        return self.in_prompt is not None

    def of_prompt(self, start: int, stop: int) -> Sequence[int]:
        """Kept tokens among prompt tokens `start` to `stop - 1`."""
        if self.in_prompt is not None:
            return [token for token in self.in_prompt if start <= token < stop]
        if self.positions == "generated":
            return ()
        if self.positions in ("last", "last_prompt"):
            return range(max(start, self.prompt - 1), stop)
        return range(start, stop)

    def keeps_generated(self, token: int) -> bool:
        """Whether a generated token's row is kept; call once per token, in order."""
        if self.in_prompt is not None:
            return self._judge(token, self._generated[token - self.prompt])
        return self.positions in ("all", "generated", "last")

    def needs_prompt(self, tokens: int) -> bool:
        """Whether rows among the first `tokens` prompt tokens are kept."""
        return bool(self.of_prompt(0, tokens))


class RowRecord:
    """Rows of one request in a place of the buffers.

    Rows of points that exist from the last prompt token on are counted apart.

    Attributes:
        held: rows of the first tokens that other requests have too.
        wanted: leading tokens whose rows another request waits for.
    """

    def __init__(
        self,
        buffers: RowBuffers,
        place: int,
        request: GenerationRequest,
        kept: Kept,
        *,
        dtype: torch.dtype | None,
        shaping: RowShaping,
    ) -> None:
        self.buffers, self.place, self.kept = buffers, place, kept
        self.held: HeldRows | None = None
        self.wanted = 0
        self._key, self._dtype = request.key, dtype
        self._keeps_rows = shaping.keeps_rows
        self._tokens: dict[bool, list[int]] = {False: [], True: []}  # of the rows in the place; by tail_only
        self._delivered = {False: 0, True: 0}
        self._summaries: Summaries | None = None
        if shaping.summarises:
            self._summaries = Summaries(
                buffers.points, batch=1, shaping=shaping, dtype=dtype, earlier=(request.earlier,)
            )
            for point, shape in enumerate(buffers.shapes):
                self._summaries.begin(
                    point, torch.empty(0, shape.width, dtype=shape.dtype, device=buffers.device)
                )

    @property
    def room(self) -> int:
        """Rows that still fit."""
        return self.buffers.size - (0 if self._newest_only else len(self._tokens[False]))

    @property
    def _newest_only(self) -> bool:
        return self.kept.positions == "last" and not self.kept.chosen

    @property
    def leading(self) -> int:
        """Leading prompt tokens whose rows can be handed to another request."""
        held = 0 if self.held is None else self.held.tokens
        tokens = self._tokens[False]
        if self.kept.chosen or not tokens or tokens[0] > held:
            return held
        return max(held, tokens[-1] + 1)

    def hold(self, tokens: int) -> HeldRows | None:
        """Rows of the first `tokens` tokens, for another request; None if they are not all at hand."""
        held = self.held or HeldRows(0, ())
        if tokens > self.leading:
            return None
        if tokens > held.tokens:
            start = held.tokens - self._tokens[False][0]
            stop = start + tokens - held.tokens
            segment = self.buffers.hold(self.place, start, stop, held.tokens)
            if segment is None:
                return None
            held = self.held = HeldRows(tokens, (*held.segments, segment))
        return held.first(tokens)

    def place_of(self, token: int, *, tail: bool) -> int:
        """Take the next row of the buffers for a token; returns its number there."""
        tokens = self._tokens[tail]
        if self._newest_only:
            tokens.clear()
        tokens.append(token)
        return self.place * self.buffers.size + len(tokens) - 1

    def begin_with(self, held: HeldRows) -> list[Shard]:
        """Take over rows of the first tokens; they become shards, and the place is for the rest."""
        self.held = held
        self._delivered[False] = held.tokens
        # a segment may go on beyond the first row of the next one
        stops = [*(segment.token for segment in held.segments[1:]), held.tokens]
        return [self._held_shard(segment, stop) for segment, stop in zip(held.segments, stops, strict=True)]

    def _held_shard(self, segment: Segment, stop: int) -> Shard:
        tokens = range(segment.token, min(stop, segment.token + segment.count))

        def chunks() -> dict[str, RowChunk]:
            made: dict[str, RowChunk] = {}
            for group, rows in zip(self.buffers.groups, segment.parts, strict=True):
                if not group.tail_only:
                    self._take(group, rows[:, : len(tokens)], tokens, made)
            return made

        return Shard(self._key, chunks, lambda: None, is_shared=True)

    def next_place(self, place: int) -> Shard:
        """Go on in another place; the rows so far become a shard."""
        if self.wanted:
            self.hold(min(self.wanted, self.leading))
        shard = self._shard()
        self.place = place
        self._tokens = {False: [], True: []}
        return shard

    def finish(self, generated: int) -> Shard:
        """The last shard, with the summaries and with empty tensors for hooks without rows.

        Args:
            generated: number of generated tokens.
        """
        return self._shard(generated)

    def discard(self) -> None:
        """Give the place back without writing its rows."""
        self.buffers.give_back(self.place)

    def _shard(self, generated: int | None = None) -> Shard:
        """The rows in the place; `generated` with the last shard."""
        tokens, place = self._tokens, self.place
        for tail in (False, True):
            self._delivered[tail] += len(tokens[tail])

        def chunks() -> dict[str, RowChunk]:
            made: dict[str, RowChunk] = {}
            for group in self.buffers.groups:
                own = tokens[group.tail_only]
                if own:
                    self._take(group, self.buffers.of(group, place, len(own)), own, made)
            if generated is not None:
                made |= self._empty(generated)
                made |= self._summaries.chunks()[0] if self._summaries is not None else {}
            return made

        return Shard(self._key, chunks, lambda: self.buffers.give_back(place))

    def _take(self, group: Group, rows: Tensor, tokens: Sequence[int], into: dict[str, RowChunk]) -> None:
        """Sum up rows [points, rows, width], make chunks of them, or both."""
        if self._summaries is not None:
            self._summaries.of_steps(group.points, rows.permute(1, 0, 2).unsqueeze(1), [len(tokens)])
        if not self._keeps_rows:
            return
        named = tuple(tokens) if self.kept.chosen else None
        finite = bool(rows.sum(dtype=torch.float32).isfinite()) if rows.is_floating_point() else True
        host = rows.to("cpu", stored_dtype(rows.dtype, self._dtype))
        for place, point in enumerate(group.points):
            own = host[place]
            for hook in self.buffers.points[point].hooks:
                into[hook] = RowChunk(tokens[0], own, named, finite=finite or None)

    def _empty(self, generated: int) -> dict[str, RowChunk]:
        """Hooks that have no row at all."""
        empty: dict[str, RowChunk] = {}
        for point, shape in zip(self.buffers.points, self.buffers.shapes, strict=True):
            if self._delivered[shape.tail_only] or not self._keeps_rows:
                continue
            rows = torch.empty(0, shape.width, dtype=stored_dtype(shape.dtype, self._dtype))
            chunk = RowChunk(0, rows, ())
            if not self.kept.chosen:
                due = expected_rows(self.kept.positions, self.kept.prompt, generated, shape.tail_only)
                chunk = RowChunk(due.start, rows)
            empty |= dict.fromkeys(point.hooks, chunk)
        return empty
