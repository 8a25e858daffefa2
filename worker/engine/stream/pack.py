"""Which tokens run in the next pass."""

from collections.abc import Sequence

from worker.engine.capture.parts import Part
from worker.engine.stream.live import Live

#: tokens left to prompts however many requests decode
_LEAST = 16


def pack(rows: Sequence[Live], most: int, *, chunks: bool, scored: int) -> list[tuple[Live, Part]]:
    """Parts of the next pass: single tokens first, then chunks of prompts.

    While a priority request has prompt tokens left, no other prompt takes part, so its first token is near.

    Args:
        most: tokens of the pass.
        chunks: a prompt may be read in several passes.
        scored: most tokens of prompts whose logits are all computed.
    """
    parts = [(row, Part(row, row.computed, row.computed + 1)) for row in rows if not row.prefills]
    left = max(_LEAST, most - len(parts))
    waiting = [row for row in rows if row.prefills]
    for row in [row for row in waiting if row.priority] or waiting:
        rest = row.prompt - row.computed
        count = min(left, rest)
        if row.needs_all_logits:
            count = min(count, scored)
            scored -= count
        if count > 0:
            count = count if chunks else rest
            parts.append((row, Part(row, row.computed, row.computed + count)))
            left -= count
    return sorted(parts, key=lambda item: item[1].count > 1)  # a chunk of one token is a single token too
