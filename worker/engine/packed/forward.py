"""The packed forward: one pass over single tokens and chunks of prompts of all requests."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from worker.engine.attention_masks import UnknownAttention
from worker.engine.capture.budget import Budget
from worker.engine.capture.layouts import BLOCK
from worker.engine.capture.modules import at_module
from worker.engine.locations import ATTENDED, ModelHooks, place_of
from worker.engine.messages import Request
from worker.engine.model.device_errors import RankFailed
from worker.engine.model.host_memory import to_device
from worker.engine.packed.arena import Arena
from worker.engine.packed.decoding import FixedPass, Replays
from worker.engine.packed.norms import FusedNorms
from worker.engine.packed.other_ranks import OtherRanks
from worker.engine.packed.registration import arena_attention, layer_shapes, refusal
from worker.engine.packed.step import Branches, Chunk, Step, running
from worker.engine.pass_hooks import PassHooks
from worker.engine.slot import Slot, in_pack
from worker.engine.tokens.sampler import new_next_ids
from worker.engine.variants import Variant

#: rows of every pass of a run whose numbers repeat
REPEATABLE_ROWS = BLOCK


class _AttentionHook(NamedTuple):
    """Handle of a hook at a side of a layer's attention."""

    hooks: dict[tuple[int, str], Callable[[Tensor], None]]
    key: tuple[int, str]

    def remove(self) -> None:
        del self.hooks[self.key]


class PackedForward:
    """Runs an unmodified transformers model on an arena.

    Args:
        budget: of the device's memory.
        tokens: of the arena.
        spare: tokens of the arena that only priority requests take.
        fused: one call attends for all requests, where the device has it.
        block: places of the arena at which ranges begin, see `flex`.
        slots: requests at once, at most.
        replays: decode passes are replayed as CUDA graphs, with `fused`.
        rows: of every pass; 0: as many as there are tokens.
        norms: that run fused; None: the model's own.
        varies: it reads variants, see `read_variants`.

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
        slots: int = 64,
        replays: bool = False,
        rows: int = 0,
        norms: FusedNorms | None = None,
        varies: bool = False,
    ) -> None:
        self.hooks, self.budget, self.rows, self.varies = hooks, budget, rows, varies
        self._norms = norms
        self._spare, self.fused = spare, fused
        self._others: OtherRanks | None = None
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
        self._attention_hooks: dict[tuple[int, str], Callable[[Tensor], None]] = {}
        layers: Any = hooks.model.hf.get_submodule(hooks.model.layers_path)
        self._layers: nn.ModuleList = layers
        self.next_ids = new_next_ids(slots, hooks.model.device)
        self.decoding: Replays | None = None
        if replays and fused:
            device, context = hooks.model.device, hooks.model.context_length
            fixed = FixedPass(self.logits, self.arena, self.next_ids, device, most=slots, context=context)
            self.decoding = Replays(fixed, device)

    def refusal(self, request: Request) -> str | None:
        """Why a request can never run; None if it can."""
        room, needed = self._room(request), self.arena.size_of(request.most_run)
        return f"needs {needed} tokens of an arena with {room}" if needed > room else None

    def place(self, slot: Slot) -> bool:
        """Give a slot its range; False if it must wait."""
        used = self.arena.tokens - self.arena.free
        if self._room(slot.request) - used < self.arena.size_of(slot.most):
            return False
        slot.cache = self.arena.take(slot.most)
        return slot.cache is not None

    def fork(self, source: Slot, slot: Slot, tokens: int) -> None:
        """Take over the first tokens of another slot."""
        self.arena.copy(source.cache, slot.cache, tokens)

    def leave(self, slot: Slot) -> None:
        """Free a slot's range."""
        self.arena.give(slot.cache)
        slot.cache = None

    def restart(self, slot: Slot) -> int:
        """Nothing is lost: a pass writes to the places of its own tokens alone, and writes them again."""
        return slot.computed

    def run(self, slots: Sequence[Slot], at_hooks: PassHooks) -> Tensor:
        """Run the next tokens of each slot; those with a single token come first.

        Returns:
            Logits of the last `slot.logits` tokens of each, [tokens, vocabulary].
        """
        if self.decoding is not None and self.decoding.takes(slots):
            replayed = self.decoding.run(slots, at_hooks)
            if replayed is not None:
                return self._ran(slots, replayed)
        unused, filling = self.arena.tokens, 0
        if self.rows:  # tokens that are nobody's come first, in the place that belongs to none
            filling = self.rows - sum(slot.count for slot in slots)
            for slot in slots:
                slot.first += filling
        at_hooks.begin(slots, rows=self.rows)
        spans = [(unused, unused + 1)] * filling
        chunks: list[Chunk] = []
        for slot in slots:
            begin = slot.cache.start
            if slot.count == 1 and not chunks:
                spans.append((begin, begin + slot.stop))
            else:
                chunks.append(Chunk(slot.first, slot.first + slot.count, begin, slot.computed))
        ids = [0] * filling + [token for slot in slots for token in _ids(slot)]
        positions = [0] * filling + [n for slot in slots for n in range(slot.computed, slot.stop)]
        kept = list(in_pack(slots))
        device = self.hooks.model.device
        inputs = to_device(np.array([ids, positions]), device)
        newest = self._with_unread(inputs[0], slots)
        self.hook(at_hooks)
        arena = self.arena
        step = Step(arena.keys, arena.values, spans, chunks, self.fused, self.windows, self.ways)
        places = None if len(kept) == len(ids) else kept or [0]
        if kept and self.rows:
            places = None if places is None else kept + [0] * (self.rows - len(kept))
        keep = 0 if places is None else to_device(np.array(places), device)
        if self._others is not None:
            self._others.passes(ids, step, places, at_hooks.changes())
        try:
            with self._holding(slots):
                logits = self.logits(newest[None], inputs[1:], step, keep)
        except Exception as error:
            if self._others is None:
                raise
            raise RankFailed(f"a pass of several ranks has failed: {error}") from error
        return self._ran(slots, logits[: len(kept)])

    @contextmanager
    def _holding(self, slots: Sequence[Slot]) -> Iterator[None]:
        """Let requests with variants hold what these take over."""
        handles = [
            handle
            for slot in slots
            if slot.variants is not None
            for handle in slot.variants.hold(slot.computed, slot.first, slot.count, self._layers)
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def read_variants(self, slot: Slot, variants: Sequence[Variant], at_hooks: PassHooks) -> Tensor:
        """Read variants of a request whose prompt is read, which begin at one layer.

        Returns:
            Logits of the last token of each, [variants, vocabulary].
        """
        assert slot.variants is not None
        branches = Branches(slot.cache.start, [one.first for one in variants], slot.prompt)
        ids = [token for one in variants for token in slot.tokens[one.first : slot.prompt]]
        numbers = [number for one in variants for number in range(one.first, slot.prompt)]
        at_hooks.follow(slot.variants.changes(variants, slot.edits), len(ids), len(variants))
        if slot.value is not None:
            places = slot.variants.rows_at(variants, slot.value.location, slot.value.token)
            if places:
                take = partial(slot.value.take_variants, list(places))
                at_hooks.take_at(slot.value.location, list(places.values()), take)
        device = self.hooks.model.device
        inputs = to_device(np.array([ids, numbers]), device)
        keep = to_device(np.cumsum(branches.counts) - 1, device)
        self.hook(at_hooks)
        arena = self.arena
        step = Step(arena.keys, arena.values, (), (), branches=branches, windows=self.windows)
        with slot.variants.skipping(variants, self._layers):
            return self.logits(inputs[:1], inputs[1:], step, keep)

    def lead(self, others: OtherRanks) -> None:
        """Let other ranks run the same passes from now on."""
        self._others = self.arena.others = others

    def follow(
        self, ids: NDArray[np.int32], step: Step, kept: NDArray[np.int32] | None, at_hooks: PassHooks
    ) -> None:
        """Run a pass of rank 0.

        Args:
            ids: of all tokens.
            kept: places of the tokens whose logits are computed; None: of all.
            at_hooks: with the pass's changes.
        """
        numbers = [end - begin - 1 for begin, end in step.spans]
        numbers += [n for c in step.chunks for n in range(c.start, c.start + c.stop - c.first)]
        device = self.hooks.model.device
        inputs = to_device(np.array([ids, numbers], np.int64), device)
        self.hook(at_hooks)
        keep = 0 if kept is None else to_device(kept.astype(np.int64), device)
        self.logits(inputs[:1], inputs[1:], step, keep)

    def logits(self, ids: Tensor, positions: Tensor, step: Step, keep: Tensor | int = 0) -> Tensor:
        """Logits [tokens, vocabulary] of a step; of all tokens, or of those at the places `keep`."""
        norms = nullcontext() if self._norms is None else self._norms.used()
        with running(step, self._attention_hooks), arena_attention(self.hooks.model.text_config), norms:
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

    def _ran(self, slots: Sequence[Slot], logits: Tensor) -> Tensor:
        for slot in slots:
            slot.cache.filled = slot.stop
        return logits

    def prepare(self, at_hooks: PassHooks) -> None:
        """Capture the graphs of decode passes with the captures that are open now."""
        if self.decoding is not None:
            self.decoding.prepare(at_hooks, self.hook)

    def close(self) -> None:
        """End a run: remove all hooks from the model."""
        self._hook_at(())

    def release(self) -> None:
        """Let go of all memory; it runs nothing afterwards."""
        self.close()
        if self.decoding is not None:
            self.decoding.close()
            self.decoding = None  # it refers back to this, and so would keep the arena

    def _with_unread(self, ids: Tensor, slots: Sequence[Slot]) -> Tensor:
        """The ids of a pass, those that the host has not read from where the last pass has left them."""
        unread = [
            (slot.first, slot.sampler.number) for slot in slots if slot.is_unread and slot.sampler is not None
        ]
        if not unread:
            return ids
        places, numbers = to_device(np.array(unread).T.copy(), ids.device)
        found = self.next_ids.index_select(0, numbers)
        return found if len(unread) == len(ids) else ids.index_copy_(0, places, found)

    def _room(self, request: Request) -> int:
        return self.arena.tokens if request.priority else self.arena.tokens - self._spare

    def hook(self, at_hooks: PassHooks) -> None:
        """Put the hooks of a pass on the model, and no others."""
        self._hook_at(at_hooks.locations, at_hooks.at)

    def _hook_at(self, locations: Sequence[str], at: Callable[[str, Any], None] | None = None) -> None:
        """Keep hooks at these locations and no others."""
        for location in self._handles.keys() - set(locations):
            self._handles.pop(location).remove()
        for location in locations:
            if location not in self._handles and at is not None:
                place = place_of(location)
                module: Any = self.hooks.model.hf.get_submodule(place.path)
                if place.side in ATTENDED:
                    key = int(module.layer_idx), place.side
                    self._attention_hooks[key] = partial(at, location)
                    self._handles[location] = _AttentionHook(self._attention_hooks, key)
                else:
                    self._handles[location] = at_module(module, place, partial(at, location))


def _ids(slot: Slot) -> list[int]:
    """Ids of a slot's next tokens; 0 for one that the host has not read."""
    return [0] if slot.is_unread else slot.tokens[slot.computed : slot.stop]
