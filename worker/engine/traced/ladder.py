"""What to do when memory runs out: never the same thing the same way again.

Three rungs, each taken with what the failed attempt held given back: half the batch; a batch of
one, run more sparingly (its rows leave the device as they come, or fewer layers at a time); giving
up on that sample, with the numbers.
"""

import gc
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from worker.engine.model.memory import is_out_of_memory
from worker.engine.requests import BufferOptions

log = logging.getLogger(__name__)


def sparing(options: BufferOptions) -> BufferOptions:
    """The same path of rows with nothing held back: every step leaves the device by itself, a prompt's
    rows are off it before the next layer runs, and the host holds no more than one shard of a sample.

    Equal to `options` where those are as sparing already.
    """
    return replace(
        options,
        host_buffer_bytes=min(options.host_buffer_bytes, options.shard_bytes),
        device_buffer_bytes=0,
        max_block_steps=1,
        queue_blocks=1,
        wait_for_copies=True,
    )


def descend(
    batches: Sequence[Sequence[int]],
    *,
    attempt: Callable[[Sequence[int], int], None],
    reset: Callable[[Sequence[int]], None],
    observe: Callable[[], Mapping[str, int]],
    give_up: Callable[[int, Mapping[str, int]], None],
    spares: int,
) -> int:
    """Run `attempt` on each batch of indices; where memory runs out, on its halves, and so on.

    Args:
        attempt: runs one batch to its end, the more sparingly the larger its second argument is (0: not);
            raises what the allocator raised.
        reset: discards what a failed attempt left behind, before its indices are run again.
        observe: memory in use; asked while a failed attempt still holds what it had.
        give_up: told of an index that does not fit even alone, and of what was observed then.
        spares: ways to run a batch of one that each need less than the one before; 1, 2, ... name them.

    Returns:
        The size of the largest batch that went through; 0 where none did.
    """
    waiting = [(list(batch), 0) for batch in reversed(batches)]
    largest = 0
    while waiting:
        batch, spare = waiting.pop()
        seen = _failure(attempt, batch, spare, observe)
        if seen is None:
            largest = max(largest, len(batch))
            continue
        release()
        reset(batch)
        numbers = ", ".join(f"{name} {value:,}" for name, value in seen.items())
        if len(batch) > 1:
            half = (len(batch) + 1) // 2
            log.warning("out of memory with %d samples at once (%s); on with %d", len(batch), numbers, half)
            waiting += [(batch[half:], 0), (batch[:half], 0)]
        elif spare < spares:
            log.warning("out of memory with one sample (%s); again, more sparingly", numbers)
            waiting.append((batch, spare + 1))
        else:
            log.warning("out of memory with one sample (%s); giving it up", numbers)
            give_up(batch[0], seen)
    return largest


def _failure(
    attempt: Callable[[Sequence[int], int], None],
    batch: Sequence[int],
    spare: int,
    observe: Callable[[], Mapping[str, int]],
) -> Mapping[str, int] | None:
    """What was observed where memory ran out, None where it sufficed.

    The error is dropped here: its frames hold the tensors.
    """
    try:
        attempt(batch, spare)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return observe()
    return None


def release() -> None:
    """Give freed tensors back to the device."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
