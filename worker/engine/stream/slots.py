"""Slots of a run: requests come from the source, wait for room, and get a slot with its prefix and rows."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from actograph.contract.errors import ContextLengthExceeded, InvalidRequest
from actograph.contract.interventions import check_width
from evals.plans import rows_fit
from worker.engine.capture.budget import Budget
from worker.engine.capture.layouts import BLOCK, layouts_of
from worker.engine.capture.pool import Pool
from worker.engine.capture.record import Record, need_of
from worker.engine.locations import ModelHooks
from worker.engine.messages import Request, Source
from worker.engine.model.device_errors import out_of_memory
from worker.engine.model_state import ModelState
from worker.engine.packed.prefixes import Prefixes, PrefixKeys, SharedPrefix, keys_of
from worker.engine.pass_hooks import PassHooks
from worker.engine.prompt_values import PromptValue, check_value
from worker.engine.slot import Slot, unread
from worker.engine.stream.delivery import Delivery
from worker.engine.stream.forward import Forward
from worker.engine.variants import SlotVariants, check_variants

#: requests pulled at once, so that few wait for memory
_BITE = 8


@dataclass(slots=True, eq=False)
class _Waiting:
    request: Request
    keys: PrefixKeys


class Slots:
    """Running and waiting requests of a run.

    Args:
        state: of the model.
        budget: of the host's memory, for rows.
        most: requests at once, priority requests besides.
        urgent: priority requests at once.
        step_tokens: tokens of the largest pass.
        at_hooks: of the model, with its pool, which stay as they are; None: of this run alone.

    Attributes:
        running: in the order in which they came.
        shared: tokens forked.
    """

    def __init__(
        self,
        forward: Forward,
        state: ModelState,
        budget: Budget,
        source: Source,
        delivery: Delivery,
        *,
        most: int,
        urgent: int,
        step_tokens: int = BLOCK,
        at_hooks: PassHooks | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.running: list[Slot] = []
        self._keeps_pool = at_hooks is not None
        if at_hooks is None:
            blocks = blocks_of(most + urgent, step_tokens)
            pool = Pool(forward.hooks.model.device, forward.budget, budget, blocks=blocks)
            at_hooks = PassHooks(forward.hooks, pool)
        self.at_hooks, self.pool = at_hooks, at_hooks.pool
        self.shared = 0
        self._waiting: list[_Waiting] = []
        self._forward, self._hooks, self._state = forward, forward.hooks, state
        self._source, self._delivery = source, delivery
        self._most, self._urgent, self._clock = most, urgent, clock
        self._prefixes = Prefixes()
        # for rows
        self._host, self._device = self.pool.host.free, self.pool.memory.free
        if self._keeps_pool:  # of which idle regions have some
            self._host, self._device = self.pool.host.total, self.pool.memory.total

    @property
    def waiting(self) -> list[Request]:
        """Requests that were pulled and have no slot."""
        return [one.request for one in self._waiting]

    def pull(self) -> bool:
        """Take a few requests; no ordinary one while one waits for room. False if none came."""
        if self._source.exhausted:
            return False
        chats = sum(slot.priority and not slot.prefix for slot in self.running)
        others = sum(not slot.prefix for slot in self.running) - chats
        waiting = sum(one.request.priority for one in self._waiting)
        room = 0 if len(self._waiting) > waiting else max(0, min(_BITE, self._most - others))
        idle = not self.running and not self._waiting
        urgent = max(0, self._urgent - chats - waiting)
        pulled = self._source.pull(room, urgent=urgent, wait=0.2 if idle else 0.0)
        for request in pulled:
            try:
                check(request, self._hooks)
                if request.variants and not self._forward.varies:
                    raise InvalidRequest(f"{request.key}: this run reads no variants of prompts")
                keys = self._admit(request)
            except Exception as error:  # noqa: BLE001 (it fails this request alone)
                self._delivery.end(unread(request, "error", error))
                continue
            self._waiting.append(_Waiting(request, keys))
            self._prefixes.note(keys)
        return bool(pulled)

    def fill(self, dropped: Callable[[str], bool], started: Callable[[Slot], None]) -> None:
        """Give waiting requests their slots, priority first; one without room holds up those behind it.

        Args:
            started: called with each request that got its slot.
        """
        left: list[_Waiting] = []
        blocked = False
        for one in sorted(self._waiting, key=lambda one: not one.request.priority):
            request = one.request
            if dropped(request.key):
                self._delivery.end(unread(request, "dropped"))
                continue
            try:
                slot = None if blocked and not request.priority else self._placed(one)
            except Exception as error:  # noqa: BLE001 (it fails this request alone)
                self._delivery.end(unread(request, "error", error))
                continue
            if slot is not None:
                started(slot)
                continue
            left.append(one)
            # one that waits for its prefix holds up nobody
            blocked = blocked or not self._prefixes.pending(request, one.keys)
        if left and not self.running and not self._delivery.busy:
            back = self._delivery.take_back()
            self.pool.give(back)
            if not back:  # nothing will ever make room
                self._refuse(left.pop(0).request)
        self._waiting = left

    def leave(self, slot: Slot, *, failed: bool = False) -> None:
        """Free a slot; a prefix that is computed stays for its forks."""
        self.running.remove(slot)
        slot.ended = True
        if not slot.prefix:
            self._free(slot)
            return
        prefix = next(one for one in self._prefixes.all() if one.slot is slot)
        if failed:
            self._evict(prefix, ever=True)
        else:
            prefix.ready = True

    def make_room(self, record: Record, planned: Sequence[Slot]) -> bool:
        """Free blocks of rows, or send rows of the fullest request off early; False if only time helps.

        Args:
            record: it needs blocks.
            planned: slots that have their blocks for the next pass already and must keep them.
        """
        back = self._delivery.take_back()
        self.pool.give(back)
        oldest = None if back else self._prefixes.oldest()
        if oldest is not None:
            self._evict(oldest)
        elif not back and not self._delivery.busy:
            able = [slot for slot in self.running if not slot.prefix and slot not in planned and _bytes(slot)]
            helps = [slot for slot in able if slot.record is not None and slot.record.shares(record)]
            if able:
                self.send(max(helps or able, key=_bytes))
        return bool(back) or oldest is not None

    def send(self, slot: Slot) -> None:
        """Let the rows so far leave."""
        if slot.record is not None:
            self._delivery.write(slot.key, slot.record.leave())

    def clear(self) -> None:
        """Forget all prefixes, and free all blocks."""
        for prefix in self._prefixes.all():
            self._evict(prefix)
        self.pool.give(self._delivery.take_back())
        self.at_hooks.end()
        if not self._keeps_pool:
            self.pool.clear()

    def _admit(self, request: Request) -> PrefixKeys:
        """Keys of the prefixes that a request may share.

        Raises:
            OutOfDeviceMemory: it can never run here.
        """
        reason = self._forward.refusal(request)
        if reason is not None:
            raise out_of_memory(self._hooks.model.devices, f"{request.key}: it {reason}", {})
        tail = False
        if request.capture is not None and not request.capture.is_empty:
            layouts = layouts_of(self._hooks, request.capture)
            tail = any(layout.tail for layout in layouts)
            need = need_of(request.capture, layouts)
            device = self._device if self.pool.on_gpu else None
            if not rows_fit(need, device=device, host=self._host):
                seen = {
                    "row_bytes": need.together,
                    "sae_bytes": need.encoders,
                    "free_row_bytes": self._host,
                    "free_device_bytes": self._device,
                }
                what = "a block of rows" if not need.encoders else "a block of rows with its SAEs"
                raise out_of_memory(self._hooks.model.devices, f"{request.key}: {what}", seen)
        early = request.value_at is not None and request.value_at.token < len(request.prompt_ids) - 1
        if not self._forward.forks or early or request.variants or (tail and not request.most_generated):
            return PrefixKeys()
        return keys_of(request)

    def _refuse(self, request: Request) -> None:
        numbers = {"free_row_bytes": self.pool.host.free, "free_device_bytes": self.pool.memory.free}
        what = (
            f"{request.key}: a prompt of {len(request.prompt_ids)} tokens with max_tokens "
            f"{request.most_generated}"
        )
        error = out_of_memory(self._hooks.model.devices, what, numbers)
        self._delivery.end(unread(request, "error", error))

    def _placed(self, one: _Waiting) -> Slot | None:
        prefix = self._prefixes.find(one.request, one.keys)
        if prefix is not None and prefix.slot is None and not self._open_prefix(prefix):
            if self.running:
                return None
            self._prefixes.forget(prefix, ever=True)
            prefix = None
        if prefix is not None and not prefix.ready:
            return None
        slot = self._open(one.request, fork=prefix)
        if slot is None and prefix is not None and not self.running:
            self._evict(prefix, ever=True)  # both do not fit: run it alone
            slot = self._open(one.request)
        return slot

    def _open_prefix(self, prefix: SharedPrefix) -> bool:
        """Give a prefix its slot, perhaps with the tokens of a shorter one; False if there is no room."""
        shorter = self._prefixes.find(prefix.request, keys_of(prefix.request), make=False)
        prefix.slot = self._open(prefix.request, fork=shorter, prefix=True)
        return prefix.slot is not None

    def _open(
        self, request: Request, fork: SharedPrefix | None = None, *, prefix: bool = False
    ) -> Slot | None:
        """Give a request its slot, and a fork its first tokens and rows; None if there is no room."""
        slot = Slot(request, self._clock(), prefix=prefix)
        while not self._given(slot):
            oldest = self._prefixes.oldest(but=fork)
            if oldest is None:
                return None
            self._evict(oldest)
        if request.value_at is not None:
            slot.value = PromptValue(request, request.value_at, self._hooks)
        try:
            slot.edits = self._state.edits(request, slot.generated)
            if fork is not None and fork.ready and fork.slot is not None:
                self._fork(fork.slot, slot, fork.tokens)
        except BaseException:
            self._free(slot)
            if slot.record is not None:
                slot.record.discard()
            raise
        self.running.append(slot)
        return slot

    def _fork(self, source: Slot, slot: Slot, tokens: int) -> None:
        """Give a request the first tokens of another, and their rows."""
        self._forward.fork(source, slot, tokens)
        slot.computed = slot.cached = tokens
        if slot.record is not None and source.record is not None:
            slot.record.begin_with(source.record.shareable)
        self.shared += tokens

    def _given(self, slot: Slot) -> bool:
        """Tokens of the forward and, for a request that captures, its record with a block of rows."""
        if not self._forward.place(slot):
            return False
        request = slot.request
        if request.variants:
            variants = SlotVariants(request, self._hooks, self._host)
            if not self.pool.reserve_on_host(variants.bytes):
                self._forward.leave(slot)
                return False
            slot.variants = variants
            return True
        if request.capture is None or request.capture.is_empty:
            return True
        try:
            slot.points = self.at_hooks.open(request.capture)
            if slot.points is not None:
                kept = self._state.kept(request, slot.generated)
                earlier = None if request.sums is None else self._state.earlier(request.sums)
                record = Record(request, kept, earlier, slot.points.regions, self.pool)
                if self._counted(record):
                    slot.record = record
        finally:
            if slot.record is None:
                if slot.points is not None:
                    self.at_hooks.close(slot.points)
                    slot.points = None
                self._forward.leave(slot)
        return slot.record is not None

    def _counted(self, record: Record) -> bool:
        """Count what a record holds from its start to its end; False if there is no room."""
        if not self.pool.reserve_on_host(record.need.held):
            return False
        counted = False
        try:
            sums = self.pool.reserve(record.need.sums)
            if sums is not None:
                record.sum_in(sums)
                try:
                    # with a block from the start, one of the running requests can always go on
                    counted = record.reserve(1, 1)
                finally:
                    if not counted:
                        self.pool.memory.remove(sums)
        finally:
            if not counted:
                self.pool.host.give(record.need.held)
        return counted

    def _free(self, slot: Slot) -> None:
        self._forward.leave(slot)
        self.at_hooks.close_edits(slot)
        if slot.variants is not None:
            self.pool.host.give(slot.variants.bytes)
        if slot.record is not None and slot.points is not None:
            self.at_hooks.close(slot.points)
            self.pool.host.give(slot.record.need.held)
            if slot.record.sums is not None:
                self.pool.memory.remove(slot.record.sums)

    def _evict(self, prefix: SharedPrefix, *, ever: bool = False) -> None:
        """Free the tokens and rows of a prefix that does not run."""
        self._prefixes.forget(prefix, ever=ever)
        slot = prefix.slot
        if slot is not None:
            self._free(slot)
            if slot.record is not None:
                slot.record.discard()


def blocks_of(slots: int, step_tokens: int) -> int:
    """Blocks of a region: one for each request, and those that a pass of prompts fills while others leave."""
    return slots + 2 * -(-step_tokens // BLOCK)


def _bytes(slot: Slot) -> int:
    return 0 if slot.record is None else slot.record.bytes


def check(request: Request, hooks: ModelHooks) -> None:
    """Refuse a request that the model cannot run.

    Raises:
        InvalidRequest, ContextLengthExceeded, UnknownHook: the request is at fault.
    """
    context, vocabulary = hooks.structure.context_length, hooks.structure.vocab_size
    key, prompt, most = request.key, len(request.prompt_ids), request.most_generated
    if not prompt:
        raise InvalidRequest(f"{key}: the prompt has no tokens", param="prompt")
    if min(request.prompt_ids) < 0 or max(request.prompt_ids) >= vocabulary:
        raise InvalidRequest(f"{key}: token ids must be from 0 to {vocabulary - 1}", param="prompt")
    if not most and prompt > context:
        raise ContextLengthExceeded(
            f"{key}: the text has {prompt} tokens; the model's context is {context}", param="prompt"
        )
    if prompt + most > context:
        raise ContextLengthExceeded(
            f"{key}: prompt ({prompt} tokens) and max_tokens ({most}) need {prompt + most} tokens; the "
            f"model's context is {context}",
            param="max_tokens",
        )
    switch = hooks.structure.position_switch
    if switch is not None and prompt <= switch < request.most_run:
        raise InvalidRequest(
            f"{key}: prompt ({prompt} tokens) and max_tokens ({most}) cross {switch} tokens, where this "
            f"model's positions change for all tokens of a text; lower max_tokens to {switch - prompt + 1}, "
            f"or give a prompt of more than {switch} tokens",
            param="max_tokens",
        )
    readouts = set[str]() if request.capture is None else {one.name for one in request.capture.readouts}
    if unknown := {limit.name for limit in request.limits} - readouts:
        raise InvalidRequest(
            f"{key}: it captures no {min(unknown)}, which is to end it or begin an edit", param="capture"
        )
    check_value(request, hooks)
    if request.variants:
        check_variants(request, hooks)
    for edit in (*request.edits, *(edit for one in request.variants for edit in one)):
        if edit.vector is not None:
            width = hooks.width_of(edit.hook) if edit.columns is None else len(edit.columns)
            check_width(edit.hook, len(edit.vector), width, "interventions")
