"""Rows of one request: which tokens it keeps, its blocks, and the chunks that leave."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from actograph.contract.row_selection import Selection
from worker.engine.capture.pool import BLOCK, Block, Layout, Pool
from worker.engine.capture.selection import ChosenTokens
from worker.engine.capture.summaries import Summaries
from worker.engine.requests import RowChunk
from worker.engine.runs import DTYPES, CapturePlan, RunRequest


class Shard(NamedTuple):
    """Rows of one request on their way to the sink."""

    pieces: Sequence[tuple[Layout, Sequence[Block]]]
    scattered: bool
    extra: Mapping[str, RowChunk]  # made already: summaries and empty hooks

    @property
    def blocks(self) -> list[Block]:
        """Blocks to give back when it is written."""
        return [block for _, blocks in self.pieces for block in blocks]

    def chunks(self) -> dict[str, RowChunk]:
        """Rows by hook, in the memory of the blocks. Called in the delivery thread: it computes nothing."""
        made = dict(self.extra)
        for layout, blocks in self.pieces:
            tokens = [token for block in blocks for token in block.tokens]
            if not tokens:
                continue
            named = tuple(tokens) if self.scattered else None
            for g, group in enumerate(layout.groups):
                for i, names in enumerate(group.names):
                    pieces = tuple(b.parts[g][i, : len(b.tokens)] for b in blocks if b.tokens)
                    made.update(dict.fromkeys(names, RowChunk(tokens[0], pieces, named)))
        return made


class _Strand:
    """Rows of one layout."""

    def __init__(self, layout: Layout, pool: Pool) -> None:
        self.layout, self._pool = layout, pool
        self.blocks: list[Block] = []  # with rows, or ready for them
        self.rows = 0  # in the blocks
        self.delivered = 0

    def missing(self, rows: int) -> int:
        """Blocks that `rows` more rows need."""
        return max(0, -(-(self.rows + rows) // BLOCK) - len(self.blocks))

    def clear(self) -> None:
        for block in self.blocks:
            block.tokens.clear()
        self.rows = 0

    def add(self, tokens: Sequence[int], parts: Sequence[Tensor]) -> None:
        done = 0
        while done < len(tokens):
            block, at = self.blocks[self.rows // BLOCK], self.rows % BLOCK
            n = min(len(tokens) - done, BLOCK - at)
            for held, new in zip(block.parts, parts, strict=True):
                held[:, at : at + n] = new[:, done : done + n]
            block.tokens += tokens[done : done + n]
            done += n
            self.rows += n

    def leave(self) -> list[Block]:
        blocks, self.blocks = self.blocks, []
        self.delivered += self.rows
        self.rows = 0
        return blocks


def held_bytes(plan: CapturePlan, layouts: Sequence[Layout]) -> int:
    """Bytes of the rows that a plan's sink holds."""
    return plan.held_rows * sum(layout.row_bytes for layout in layouts)


class Record:
    """Rows of one request from its first kept token on.

    Args:
        layouts: of its plan.
        generated: live view of its generated ids.

    Attributes:
        held: see `held_bytes`.
    """

    def __init__(
        self,
        item: RunRequest,
        plan: CapturePlan,
        layouts: Sequence[Layout],
        pool: Pool,
        generated: Sequence[int],
    ) -> None:
        self.plan, self._prompt = plan, len(item.prompt)
        chooser = item.request.chooser or plan.shaping.chooser
        self.kept = ChosenTokens(plan.positions, chooser, item.prompt, generated)
        #: first token with rows of points that have the last tokens alone
        self.tail_from = 0 if not item.max_tokens else len(item.prompt) - 1
        self.has_tail = any(layout.tail for layout in layouts)
        self.held = held_bytes(plan, layouts)
        self._pool = pool
        self._strands = [_Strand(layout, pool) for layout in layouts]
        self._keeps = plan.shaping.keeps_rows
        self._summaries: Summaries | None = None
        if plan.shaping.summarises:
            self._summaries = Summaries(
                [group for layout in layouts for group in layout.groups],
                plan.shaping,
                dtype=DTYPES.get(plan.dtype),
                earlier=item.request.earlier,
            )

    @property
    def bytes(self) -> int:
        """Bytes of rows that may leave now."""
        if self.kept.newest_only:
            return 0
        return sum(strand.rows * strand.layout.row_bytes for strand in self._strands)

    def reserve(self, rows: int, tail: int) -> bool:
        """Make sure that more rows fit; False, and nothing is taken, if the pool has no block left.

        Args:
            rows: of points with all tokens; `tail`: of those with the last tokens alone.
        """
        if not self._keeps:
            return True
        taken: list[tuple[_Strand, Block]] = []
        fits = False
        try:
            for strand in self._strands:
                more = tail if strand.layout.tail else rows
                count = not strand.blocks if self.kept.newest_only else strand.missing(more)
                for _ in range(count):
                    block = self._pool.take(strand.layout)
                    if block is None:
                        return False
                    taken.append((strand, block))
            fits = True
        finally:
            if not fits:  # two requests must not wait for each other
                self._pool.give([block for _, block in taken])
        for strand, block in taken:
            strand.blocks.append(block)
        return True

    def begin_with(self, blocks: Sequence[Block]) -> None:
        """Begin with the full blocks of a common beginning. Points with the last tokens alone have none."""
        for strand in self._strands:
            if not strand.layout.tail:  # at most one
                for block in blocks:
                    block.users += 1
                strand.blocks = [*blocks, *strand.blocks]
                strand.rows += sum(len(block.tokens) for block in blocks)

    @property
    def shareable(self) -> list[Block]:
        """Blocks of points with all tokens: what a common beginning shares."""
        return [block for strand in self._strands if not strand.layout.tail for block in strand.blocks]

    def add(self, layout: Layout, tokens: Sequence[int], parts: Sequence[Tensor]) -> None:
        """Take rows on the host, of each group [points, tokens, width]."""
        strand = next(strand for strand in self._strands if strand.layout is layout)
        if self.kept.newest_only:
            strand.clear()
            tokens, parts = tokens[-1:], [rows[:, -1:] for rows in parts]
        if self._summaries is not None:
            for group, rows in zip(layout.groups, parts, strict=True):
                if self.kept.newest_only:
                    self._summaries.forget(group)
                self._summaries.add(group, rows)
        if self._keeps:
            strand.add(tokens, parts)

    def leave(self) -> Shard:
        """All rows so far; they are no longer the record's."""
        return Shard([(s.layout, s.leave()) for s in self._strands], self.kept.scattered, {})

    def finish(self, generated: int) -> Shard:
        """The last rows, with summaries, and with empty tensors for hooks that have no row at all.

        Args:
            generated: number of generated tokens.
        """
        shard = self.leave()
        extra: dict[str, RowChunk] = {}
        for strand in self._strands if self._keeps else ():
            for group in strand.layout.groups if not strand.delivered else ():
                rows = torch.empty(0, group.width, dtype=group.stored)
                chunk = RowChunk(self._first(generated, strand.layout.tail), (rows,), self._no_tokens)
                extra.update({name: chunk for names in group.names for name in names})
        if self._summaries is not None:
            extra.update(self._summaries.chunks())
        return shard._replace(extra=extra)

    @property
    def _no_tokens(self) -> tuple[int, ...] | None:
        return () if self.kept.scattered else None

    def _first(self, generated: int, tail: bool) -> int:
        """Number of the first row that a hook would have."""
        match self.plan.positions:
            case "all" | "prompt" | "generated" | "last" | "last_prompt" as named if not self.kept.scattered:
                stop = self._prompt + max(0, generated - 1)
                first = self._prompt - 1 if tail else 0
                rows = Selection.of(named, self._prompt).rows(first, self._prompt, stop)
                assert isinstance(rows, range)
                return rows.start
        return 0

    def discard(self) -> None:
        """Give the blocks back without a shard."""
        for strand in self._strands:
            self._pool.give(strand.blocks)
            strand.blocks, strand.rows = [], 0
