"""Rows of one request: which tokens it keeps, its blocks, and the chunks that leave."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from actograph.contract.row_selection import Selection
from evals.plans import RowNeed, readout_bytes, row_need, sae_bytes
from worker.engine.capture.budget import Piece
from worker.engine.capture.host_rows import rows_of
from worker.engine.capture.layouts import BLOCK, Layout
from worker.engine.capture.pool import Block, Pool, Region
from worker.engine.capture.summaries import EarlierRows, Summaries, summary_bytes
from worker.engine.chosen_tokens import ChosenTokens
from worker.engine.messages import Capture, Request, Rows


class Shard(NamedTuple):
    """Rows of one request on their way to the sink."""

    pieces: Sequence[tuple[Layout, Sequence[Block]]]
    scattered: bool
    extra: Mapping[str, Rows]  # made already: summaries and empty hooks
    made: Any = None  # event at which `extra` is on the host; None if it is there

    @property
    def blocks(self) -> list[Block]:
        """Blocks to give back when it is written."""
        return [block for _, blocks in self.pieces for block in blocks]

    def chunks(self) -> dict[str, Rows]:
        """Rows by hook, in the memory of the blocks, when all are on the host.

        Called in the delivery thread: it computes nothing.
        """
        if self.made is not None:
            self.made.synchronize()
        made = dict(self.extra)
        for layout, blocks in self.pieces:
            tokens = [token for block in blocks for token in block.tokens]
            if not tokens:
                continue
            named = tuple(tokens) if self.scattered else None
            for block in blocks:
                block.wait()
            for g, group in enumerate(layout.groups):
                rows = [block.on_host(g) for block in blocks if block.tokens]
                finite = all(block.finite(g) for block in blocks if block.tokens)
                for i, names in enumerate(group.names):
                    point = rows_of([own[i] for own in rows], tokens[0], named, finite=finite)
                    made.update(dict.fromkeys(names, point))
        return made


class LayoutRows:
    """Rows of one layout of one request.

    Rows of a pass are written to the places of `segments`. They keep these when it is launched (`wrote`), and
    count when its tokens are known (`note`). So a pass that fails and runs again writes to the same places,
    and rows of a request that had ended before are left out.

    Args:
        newest_only: only the newest row counts, and takes the place of the one before.
        summaries: take the rows of full blocks, and of those that leave.
    """

    def __init__(
        self, region: Region, pool: Pool, *, newest_only: bool, summaries: Summaries | None = None
    ) -> None:
        self.region, self.layout, self._pool = region, region.layout, pool
        self._newest_only = newest_only
        self._summaries = summaries if self.layout.summed else None
        self.blocks: list[Block] = []  # with rows, or ready for them
        self.rows = 0  # in the blocks
        self.unread = 0  # further rows there, of passes whose tokens are not known yet
        self.delivered = 0

    def missing(self, rows: int) -> int:
        """Blocks that `rows` more rows need."""
        if self._newest_only:
            return int(not self.blocks)
        return max(0, -(-(self.rows + self.unread + rows) // BLOCK) - len(self.blocks))

    def segments(self, rows: int) -> Iterator[tuple[int, int, int]]:
        """Places of the next rows: a block's place, the first row there, and how many rows."""
        if self._newest_only:
            yield _place(self.blocks[0]), 0, 1
            return
        at = self.rows + self.unread
        stop = at + rows
        while at < stop:
            count = min(stop - at, BLOCK - at % BLOCK)
            yield _place(self.blocks[at // BLOCK]), at % BLOCK, count
            at += count

    def wrote(self, rows: int) -> None:
        """Keep the places of rows that a launched pass writes."""
        self.unread += rows

    @property
    def newest(self) -> torch.Tensor:
        """The newest row of each point of the first group, [points, width], of launched passes too."""
        at = 0 if self._newest_only else self.rows + self.unread - 1
        return self.region.slabs[0][_place(self.blocks[at // BLOCK])][:, at % BLOCK]

    def note(self, tokens: Sequence[int]) -> list[Block]:
        """Count rows that a good pass has written; returns blocks that are full and can leave the device."""
        self.unread -= len(tokens)
        if self._newest_only:
            self.blocks[0].tokens[:] = tokens
            self.rows = 1
            return []
        full, done = [], 0
        while done < len(tokens):
            block, at = self.blocks[self.rows // BLOCK], self.rows % BLOCK
            count = min(len(tokens) - done, BLOCK - at)
            block.tokens += tokens[done : done + count]
            done += count
            self.rows += count
            if at + count == BLOCK:
                self._sum_up(block)
                if self.layout.kept:
                    full.append(block)
                else:
                    self._empty(block)
        return full

    def begin_with(self, blocks: Sequence[Block]) -> None:
        """Begin with the full blocks of a shared prefix."""
        for block in blocks:
            block.users += 1
        self.blocks = [*blocks, *self.blocks]
        self.rows += sum(len(block.tokens) for block in blocks)

    def settle(self) -> None:
        """Sum up the rows of the last block, before they leave."""
        if self.rows % BLOCK:
            block = self.blocks[self.rows // BLOCK]
            self._sum_up(block)
            if not self.layout.kept:
                self._empty(block)

    def leave(self) -> list[Block]:
        """Blocks whose rows leave, empty ones included; rows that are only summed up leave none."""
        if not self.layout.kept:
            return []
        blocks, self.blocks = self.blocks, []
        self.delivered += self.rows
        self.rows = 0
        return blocks

    def discard(self) -> None:
        self._pool.give(self.blocks)
        self.blocks, self.rows = [], 0

    def _sum_up(self, block: Block) -> None:
        if self._summaries is not None:
            for g, group in enumerate(self.layout.groups):
                self._summaries.add(group, block.rows(g))

    def _empty(self, block: Block) -> None:
        """Use a block again whose rows are summed up; one stays, so that the request can go on."""
        self.rows -= len(block.tokens)
        block.tokens.clear()
        if len(self.blocks) > 1:
            self.blocks.remove(block)
            self._pool.give([block])


def _place(block: Block) -> int:
    assert block.place is not None
    return block.place


def need_of(capture: Capture, layouts: Sequence[Layout]) -> RowNeed:
    """Bytes that a request with a capture holds for its rows."""
    return row_need(
        kept=sum(layout.row_bytes for layout in layouts if layout.kept),
        summed=sum(layout.row_bytes for layout in layouts if not layout.kept),
        sums=summary_bytes(capture, layouts),
        held_rows=capture.held_rows,
        encoders=sum(sae_bytes(config) for config in {e.sha256: e.config for e in capture.encodings}.values())
        + sum(readout_bytes([one.width for one in layout.readouts]) for layout in layouts),
    )


class Record:
    """Rows of one request from its first kept token on.

    Args:
        kept: its tokens whose rows are kept.
        earlier: summaries of earlier turns; takes those of this one.
        regions: of the layouts of its capture.

    Attributes:
        rows: of each layout.
        need: bytes that it holds.
        sums: memory of the device for what it sums up; None before it has its place.
    """

    def __init__(
        self,
        request: Request,
        kept: ChosenTokens,
        earlier: EarlierRows | None,
        regions: Sequence[Region],
        pool: Pool,
    ) -> None:
        assert request.capture is not None
        capture, prompt = request.capture, len(request.prompt_ids)
        self._capture, self._prompt, self.kept = capture, prompt, kept
        #: first token with rows of points that have the last tokens alone
        self.tail_from = prompt - 1 if request.most_generated else 0
        layouts = [region.layout for region in regions]
        self.has_tail = any(layout.tail for layout in layouts)
        self.need = need_of(capture, layouts)
        self._pool = pool
        self.sums: Piece | None = None
        self._summaries: Summaries | None = None
        if capture.summarises:
            summed = [group for layout in layouts if layout.summed for group in layout.groups]
            self._summaries = Summaries(summed, capture, earlier=earlier, device=pool.device)
        self.rows = [
            LayoutRows(region, pool, newest_only=kept.newest_only, summaries=self._summaries)
            for region in regions
        ]

    def sum_in(self, memory: Piece) -> None:
        """Give it memory for what it sums up: `need.sums` bytes."""
        self.sums = memory
        if self._summaries is not None and memory.memory is not None:
            self._summaries.memory = memory

    @property
    def bytes(self) -> int:
        """Bytes of rows that may leave their blocks now."""
        if self.kept.newest_only:
            return 0
        return sum(own.rows * own.layout.row_bytes for own in self.rows)

    def shares(self, other: "Record") -> bool:
        """Whether a block of one can serve the other."""
        regions = [own.region for own in other.rows]
        return not self._pool.on_gpu or any(own.region in regions for own in self.rows)

    def reserve(self, rows: int, tail: int) -> bool:
        """Make sure that more rows fit; False, and nothing is taken, if the pool has no block left.

        Args:
            rows: of points with all tokens; `tail`: of those with the last tokens alone.
        """
        taken: list[tuple[LayoutRows, Block]] = []
        fits = False
        try:
            for own in self.rows:
                for _ in range(own.missing(tail if own.layout.tail else rows)):
                    block = self._pool.take(own.region)
                    if block is None:
                        return False
                    taken.append((own, block))
            fits = True
        finally:
            if not fits:  # two requests must not wait for each other
                self._pool.give([block for _, block in taken])
        for own, block in taken:
            own.blocks.append(block)
        return True

    def begin_with(self, blocks: Sequence[Block]) -> None:
        """Begin with the full blocks of a shared prefix. Points with the last tokens alone have none."""
        for own in self.rows:
            if not own.layout.tail:
                own.begin_with([block for block in blocks if block.region is own.region])

    @property
    def shareable(self) -> list[Block]:
        """Blocks of points with all tokens: what a shared prefix shares."""
        return [block for own in self.rows if not own.layout.tail for block in own.blocks]

    def leave(self) -> Shard:
        """All rows so far; they are no longer the record's. No launched pass may have rows in its blocks."""
        assert not any(own.unread for own in self.rows)
        for own in self.rows:
            own.settle()
        return self._shard()

    def finish(self, generated: int) -> Shard:
        """The last rows, with summaries, and with empty tensors for hooks that have no row at all.

        Args:
            generated: number of generated tokens.
        """
        extra: dict[str, Rows] = {}
        for own in self.rows:
            own.unread = 0  # the request had ended before them
            own.settle()
            if not own.layout.kept or own.delivered or own.rows:
                continue
            for group in own.layout.groups:
                rows = torch.empty(0, group.held_width, dtype=group.held)
                empty = rows_of((rows,), self._first(generated, own.layout.tail), self._no_tokens)
                extra.update({name: empty for names in group.names for name in names})
        made = None
        if self._summaries is not None:
            on_gpu = self._pool.on_gpu
            extra.update(self._summaries.chunks(self._pool.copies.fetch if on_gpu else lambda x: x))
            made = self._pool.copies.mark() if on_gpu else None
        shard = self._shard()
        self.discard()
        return shard._replace(extra=extra, made=made)

    def _shard(self) -> Shard:
        for own in self.rows:
            if own.layout.kept:
                self._pool.leave([block for block in own.blocks if block.tokens])
        return Shard([(own.layout, own.leave()) for own in self.rows], self.kept.scattered, {})

    @property
    def _no_tokens(self) -> tuple[int, ...] | None:
        return () if self.kept.scattered else None

    def _first(self, generated: int, tail: bool) -> int:
        """Number of the first row that a hook would have."""
        if self.kept.scattered:
            return 0
        stop = self._prompt + max(0, generated - 1)
        first = self._prompt - 1 if tail else 0
        rows = Selection.of(self._capture.positions, self._prompt).rows(first, self._prompt, stop)
        assert isinstance(rows, range)
        return rows.start

    def discard(self) -> None:
        """Give the blocks back without a shard."""
        for own in self.rows:
            own.discard()
