"""Verification at load: packed passes give the logits of the model's own forward."""

import torch
from torch import Tensor

from worker.engine.capture.parts import Context, Part
from worker.engine.capture.pool import Pool
from worker.engine.capture.taps import Taps
from worker.engine.model.device_errors import is_device_lost, is_out_of_memory
from worker.engine.packed.forward import PackedForward
from worker.engine.packed.registration import UnknownAttention
from worker.engine.structure.comparison import alike

#: tokens of each prompt that every pass runs: chunks, single tokens and late prompts beside one another
_PASSES = ((16, 3, 1, 0), (5, 1, 1, 9), (1, 1, 1, 1), (7, 0, 1, 1))


def verify(forward: PackedForward) -> None:
    """Run a few packed passes and compare their logits.

    Raises:
        UnknownAttention: a pass fails, or its logits differ from the model's own.
    """
    model, vocabulary = forward.hooks.model, int(forward.hooks.model.text_config.vocab_size)
    lengths = [sum(tokens) for tokens in zip(*_PASSES, strict=True)]
    contexts = [
        Context([(11 * i + 5 * (n + 1)) % vocabulary for i in range(length)], length)
        for n, length in enumerate(lengths)
    ]
    taps = Taps(forward.hooks, forward.budget, Pool(forward.budget))
    got: list[list[Tensor]] = [[] for _ in contexts]
    placed = [context for context in contexts if forward.place(context)]
    try:
        if len(placed) < len(contexts):
            raise UnknownAttention(f"an arena of {forward.arena.tokens} tokens is too small to verify it")
        with torch.inference_mode():
            for counts in _PASSES:
                _run(forward, contexts, counts, taps, got)
            for context, parts in zip(contexts, got, strict=True):
                ids = torch.tensor([context.tokens], device=model.device)
                due = model.hf(input_ids=ids, use_cache=False).logits[0]
                if not alike(torch.cat(parts), due, due):
                    raise UnknownAttention(f"packed logits differ for a prompt of {len(due)} tokens")
    except Exception as error:
        if isinstance(error, UnknownAttention) or is_out_of_memory(error) or is_device_lost(error):
            raise
        raise UnknownAttention(f"a packed pass fails ({type(error).__name__}: {error})") from error
    finally:
        for context in placed:
            forward.leave(context)
        forward.close()


def _run(
    forward: PackedForward,
    contexts: list[Context],
    counts: tuple[int, ...],
    taps: Taps,
    into: list[list[Tensor]],
) -> None:
    """Run the next tokens of each prompt in one pass, and keep their logits."""
    parts, place = [], 0
    chosen = [(c, count, own) for c, count, own in zip(contexts, counts, into, strict=True) if count]
    chosen.sort(key=lambda one: one[1] > 1)
    for context, count, _ in chosen:
        start = context.computed
        parts.append(Part(context, start, start + count, first=place, logits=count))
        place += count
    logits = forward.run(parts, taps)
    for part, (context, count, own) in zip(parts, chosen, strict=True):
        own.append(logits[part.first : part.first + count].clone())
        context.computed = part.stop
