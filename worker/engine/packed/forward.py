"""The packed forward: one pass over single tokens and chunks of prompts of all requests."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from worker.engine.capture.budget import Budget
from worker.engine.capture.modules import at_module
from worker.engine.capture.parts import Context, Part, in_pack
from worker.engine.capture.taps import PlannedChange, Taps
from worker.engine.locations import ModelHooks, place_of
from worker.engine.model.device_errors import RankFailed
from worker.engine.model.host_memory import to_device
from worker.engine.packed.arena import Arena, Mirror
from worker.engine.packed.decoding import FixedPass, Replays
from worker.engine.packed.masks import UnknownAttention
from worker.engine.packed.registration import arena_attention, layer_shapes, refusal
from worker.engine.packed.step import Chunk, Step, running


class PassLead(Mirror, Protocol):
    """Other ranks, which run every pass too."""

    def passes(
        self, ids: Sequence[int], step: Step, kept: Sequence[int] | None, changes: Sequence[PlannedChange]
    ) -> None: ...


class PackedForward:
    """Runs an unmodified transformers model on an arena.

    Args:
        budget: of the device's memory.
        tokens: of the arena.
        spare: tokens of the arena that only priority requests take.
        fused: one call attends for all requests, where the device has it.
        block: places of the arena at which ranges begin, see `flex`.
        replayed: most rows of decode passes that are replayed as CUDA graphs, with `fused`; 0: none are.

    Attributes:
        windows: windows of the masks that its attention was given so far; 0 for a mask without one.
        ways: in which its layers attended so far.

    Raises:
        MemoryError: the arena does not fit.
        UnknownAttention: the model cannot run packed.
    """

    together = True
    forks = True
    chunks = True

    def __init__(
        self,
        hooks: ModelHooks,
        budget: Budget,
        *,
        tokens: int,
        spare: int = 0,
        fused: bool = True,
        block: int = 1,
        replayed: int = 0,
    ) -> None:
        self.hooks, self.budget = hooks, budget
        self._spare, self.fused = spare, fused
        self._lead: PassLead | None = None
        reason = refusal(hooks.model)
        if reason is not None:
            raise UnknownAttention(reason)
        shapes = layer_shapes(hooks.model)
        if not budget.take(sum(shape.token_bytes for shape in shapes) * tokens):
            raise MemoryError(f"an arena of {tokens} tokens does not fit in {budget.free:,} bytes")
        self.arena = Arena(shapes, tokens, block)
        self.windows: set[int] = set()
        self.ways: set[str] = set()
        self._handles: dict[str, Any] = {}
        self.decoding: Replays | None = None
        if replayed and fused:
            device, context = hooks.model.device, hooks.model.context_length
            fixed = FixedPass(self.logits, self.arena, device, most=replayed, context=context)
            self.decoding = Replays(fixed, device)

    def refusal(self, context: Context) -> str | None:
        """Why a request can never run; None if it can."""
        room, needed = self._room(context), self.arena.size_of(context.most)
        return f"needs {needed} tokens of an arena with {room}" if needed > room else None

    def place(self, context: Context) -> bool:
        """Give a request its range; False if it must wait."""
        used = self.arena.tokens - self.arena.free
        if self._room(context) - used < self.arena.size_of(context.most):
            return False
        context.place = self.arena.take(context.most)
        return context.place is not None

    def fork(self, source: Context, context: Context, tokens: int) -> None:
        """Take over the first tokens of another request."""
        self.arena.copy(source.place, context.place, tokens)

    def leave(self, context: Context) -> None:
        """Free a request's range."""
        self.arena.give(context.place)
        context.place = None

    def restart(self, context: Context) -> int:
        """Nothing is lost: a pass writes to the places of its own tokens alone, and writes them again."""
        return context.computed

    def run(self, parts: Sequence[Part], taps: Taps) -> Tensor:
        """Run a pack.

        Returns:
            Logits of the last `part.logits` tokens of each part, [tokens, vocabulary].
        """
        if self.decoding is not None and self.decoding.takes(parts):
            replayed = self.decoding.run(parts, taps, self.hook)
            if replayed is not None:
                return self._ran(parts, replayed)
        taps.begin(parts)
        spans: list[tuple[int, int]] = []
        chunks: list[Chunk] = []
        for part in parts:
            begin = part.context.place.start
            if part.count == 1 and not chunks:
                spans.append((begin, begin + part.stop))
            else:
                chunks.append(Chunk(part.first, part.first + part.count, begin, part.start))
        ids = [token for part in parts for token in part.context.tokens[part.start : part.stop]]
        positions = [number for part in parts for number in range(part.start, part.stop)]
        kept = list(in_pack(parts))
        device = self.hooks.model.device
        inputs = to_device(np.array([ids, positions]), device)
        self.hook(taps)
        arena = self.arena
        step = Step(arena.keys, arena.values, spans, chunks, self.fused, self.windows, self.ways)
        places = None if len(kept) == len(ids) else kept or [0]
        keep = 0 if places is None else to_device(np.array(places), device)
        if self._lead is not None:
            self._lead.passes(ids, step, places, taps.changes())
        try:
            logits = self.logits(inputs[:1], inputs[1:], step, keep)
        except Exception as error:
            if self._lead is None:
                raise
            raise RankFailed(f"a pass of several ranks has failed: {error}") from error
        return self._ran(parts, logits if kept else logits[:0])

    def lead(self, lead: PassLead) -> None:
        """Let other ranks run the same passes from now on."""
        self._lead = self.arena.mirror = lead

    def follow(
        self,
        ids: NDArray[np.int32],
        step: Step,
        kept: NDArray[np.int32] | None,
        taps: Taps,
    ) -> None:
        """Run a pass of rank 0.

        Args:
            ids: of all tokens.
            kept: places of the tokens whose logits are computed; None: of all.
            taps: with the pass's changes.
        """
        numbers = [end - begin - 1 for begin, end in step.spans]
        numbers += [n for c in step.chunks for n in range(c.start, c.start + c.stop - c.first)]
        device = self.hooks.model.device
        inputs = to_device(np.array([ids, numbers], np.int64), device)
        self.hook(taps)
        keep = 0 if kept is None else to_device(kept.astype(np.int64), device)
        self.logits(inputs[:1], inputs[1:], step, keep)

    def logits(self, ids: Tensor, positions: Tensor, step: Step, keep: Tensor | int = 0) -> Tensor:
        """Logits [tokens, vocabulary] of a step; of all tokens, or of those at the places `keep`."""
        with running(step), arena_attention(self.hooks.model.text_config):
            output = self.hooks.model.hf(
                input_ids=ids,
                position_ids=positions,
                attention_mask=None,
                past_key_values=self.arena,
                use_cache=True,
                logits_to_keep=keep,
            )
        logits: Tensor = output.logits[0]
        return logits

    def _ran(self, parts: Sequence[Part], logits: Tensor) -> Tensor:
        for part in parts:
            part.context.place.filled = part.stop
        return logits

    def close(self) -> None:
        """Remove all hooks from the model, and let go of the graphs."""
        self._hook_at(())
        if self.decoding is not None:
            self.decoding.close()
            self.decoding = None  # it refers back to this, and so would keep the arena

    def _room(self, context: Context) -> int:
        return self.arena.tokens if context.priority else self.arena.tokens - self._spare

    def hook(self, taps: Taps) -> None:
        self._hook_at(taps.locations, taps.at)

    def _hook_at(self, locations: Sequence[str], at: Callable[[str, Any], None] | None = None) -> None:
        """Keep hooks at these locations and no others."""
        for location in self._handles.keys() - set(locations):
            self._handles.pop(location).remove()
        for location in locations:
            if location not in self._handles and at is not None:
                place = place_of(location)
                module = self.hooks.model.hf.get_submodule(place.path)
                self._handles[location] = at_module(module, place, partial(at, location))
