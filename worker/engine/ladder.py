"""What to do when memory runs out: never the same thing the same way again."""

import gc
import logging
from collections.abc import Callable, Sequence

import torch

from worker.engine.memory import is_out_of_memory

log = logging.getLogger(__name__)


def descend(
    indices: Sequence[int],
    *,
    attempt: Callable[[Sequence[int]], None],
    reset: Callable[[Sequence[int]], None],
    give_up: Callable[[int], None],
) -> int:
    """Run `attempt` on all indices; where memory runs out, on their halves, and so on.

    Args:
        attempt: runs one batch to its end; raises what the allocator raised.
        reset: discards what a failed attempt left behind, before its indices are run again.
        give_up: told of an index that does not fit even alone.

    Returns:
        The size of the largest batch that went through; 0 where none did.
    """
    waiting = [list(indices)]
    largest = 0
    while waiting:
        batch = waiting.pop()
        if _fits(attempt, batch):
            largest = max(largest, len(batch))
            continue
        release()
        reset(batch)
        if len(batch) == 1:
            give_up(batch[0])
            continue
        half = (len(batch) + 1) // 2
        log.warning("out of memory with %d samples at once; going on with %d", len(batch), half)
        waiting += [batch[half:], batch[:half]]
    return largest


def _fits(attempt: Callable[[Sequence[int]], None], batch: Sequence[int]) -> bool:
    """False where memory ran out. The error is dropped here: its frames hold the tensors."""
    try:
        attempt(batch)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return False
    return True


def release() -> None:
    """Give freed tensors back to the device."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
