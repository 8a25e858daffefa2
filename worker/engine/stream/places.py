"""Places of requests: they come from the source, wait for room, and get a place, beginning and record."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from actograph.contract.errors import ContextLengthExceeded, InvalidRequest
from actograph.contract.interventions import check_width
from evals.plans import rows_fit
from worker.engine.capture.budget import Budget
from worker.engine.capture.layouts import BLOCK, layouts_of
from worker.engine.capture.parts import Context
from worker.engine.capture.pool import Pool
from worker.engine.capture.record import Record, need_of
from worker.engine.capture.taps import Taps
from worker.engine.locations import ModelHooks
from worker.engine.model.device_errors import out_of_memory
from worker.engine.packed.prefixes import Beginning, Prefixes
from worker.engine.runs import RunRequest, Source
from worker.engine.stream.delivery import Delivery
from worker.engine.stream.live import Forward, Live, unread

#: requests pulled at once, so that few wait for memory
_BITE = 8


@dataclass(slots=True, eq=False)
class _Waiting:
    item: RunRequest
    shares: bool


class Places:
    """Live and waiting requests of a run.

    Args:
        budget: of the host's memory, for rows.
        most: requests at once, priority requests besides.
        urgent: priority requests at once.
        step_tokens: tokens of the largest pass.

    Attributes:
        shared: tokens forked.
    """

    def __init__(
        self,
        forward: Forward,
        budget: Budget,
        source: Source,
        delivery: Delivery,
        *,
        most: int,
        urgent: int,
        step_tokens: int = BLOCK,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.live: list[Live] = []
        # a block for each request, and those that one pass of prompts fills while others leave
        blocks = most + urgent + 2 * -(-step_tokens // BLOCK)
        self.pool = Pool(forward.hooks.model.device, forward.budget, budget, blocks=blocks)
        self.taps = Taps(forward.hooks, self.pool)
        self.shared = 0
        self._waiting: list[_Waiting] = []
        self._forward, self._hooks, self._source, self._delivery = forward, forward.hooks, source, delivery
        self._most, self._urgent, self._clock = most, urgent, clock
        self._prefixes = Prefixes()
        self._host, self._device = budget.free, forward.budget.free  # for rows

    @property
    def waiting(self) -> list[RunRequest]:
        """Requests that were pulled and have no place."""
        return [item.item for item in self._waiting]

    def pull(self) -> bool:
        """Take a few requests; no ordinary one while one waits for room. False if none came."""
        if self._source.exhausted:
            return False
        chats = sum(live.priority and not live.begins for live in self.live)
        others = sum(not live.begins for live in self.live) - chats
        waiting = sum(one.item.priority for one in self._waiting)
        room = 0 if len(self._waiting) > waiting else max(0, min(_BITE, self._most - others))
        idle = not self.live and not self._waiting
        urgent = max(0, self._urgent - chats - waiting)
        pulled = self._source.pull(room, urgent=urgent, wait=0.2 if idle else 0.0)
        for item in pulled:
            try:
                check(item, self._hooks)
                shares = self._admit(item)
            except Exception as error:  # noqa: BLE001 (it fails this request alone)
                self._delivery.end(unread(item, "error", error))
                continue
            self._waiting.append(_Waiting(item, shares))
            if shares:
                self._prefixes.note(item)
        return bool(pulled)

    def fill(self, dropped: Callable[[str], bool], started: Callable[[Live], None]) -> None:
        """Give waiting requests their places, priority first; one without room holds up those behind it.

        Args:
            started: called with each request that got its place.
        """
        left: list[_Waiting] = []
        blocked = False
        for one in sorted(self._waiting, key=lambda one: not one.item.priority):
            item = one.item
            if dropped(item.key):
                self._delivery.end(unread(item, "dropped"))
                continue
            try:
                live = None if blocked and not item.priority else self._placed(one)
            except Exception as error:  # noqa: BLE001 (it fails this request alone)
                self._delivery.end(unread(item, "error", error))
                continue
            if live is not None:
                started(live)
                continue
            left.append(one)
            # one that waits for its beginning holds up nobody
            blocked = blocked or not (one.shares and self._prefixes.pending(item))
        if left and not self.live and not self._delivery.busy:
            back = self._delivery.take_back()
            self.pool.give(back)
            if not back:  # nothing will ever make room
                self._refuse(left.pop(0).item)
        self._waiting = left

    def leave(self, live: Live, *, failed: bool = False) -> None:
        """Free a request's place; a beginning that is computed stays for its forks."""
        self.live.remove(live)
        if live.begins is None:
            self._free(live)
        elif failed:
            self._evict(live.begins, ever=True)
        else:
            live.begins.ready = True

    def make_room(self, record: Record, packed: Sequence[Live]) -> bool:
        """Free blocks of rows, or send rows of the fullest request off early; False if only time helps.

        Args:
            record: it needs blocks.
            packed: requests that have their blocks for the next pass already and must keep them.
        """
        back = self._delivery.take_back()
        self.pool.give(back)
        oldest = None if back else self._prefixes.oldest()
        if oldest is not None:
            self._evict(oldest)
        elif not back and not self._delivery.busy:
            able = [live for live in self.live if not live.begins and live not in packed and _bytes(live)]
            helps = [live for live in able if live.record is not None and live.record.shares(record)]
            if able:
                self.send(max(helps or able, key=_bytes))
        return bool(back) or oldest is not None

    def send(self, live: Live) -> None:
        """Let the rows so far leave."""
        if live.record is not None:
            self._delivery.write(live.key, live.record.leave())

    def clear(self) -> None:
        """Forget all beginnings, and free all blocks."""
        for beginning in self._prefixes.all():
            self._evict(beginning)
        self.pool.give(self._delivery.take_back())
        self.pool.clear()

    def _admit(self, item: RunRequest) -> bool:
        """Whether a request may share a beginning.

        Raises:
            OutOfDeviceMemory: it can never run here.
        """
        reason = self._forward.refusal(Live(item, self._hooks, 0.0))
        if reason is not None:
            raise out_of_memory(self._hooks.model.devices, f"{item.key}: it {reason}", {})
        tail = False
        if item.capture is not None and item.capture.hooks:
            layouts = layouts_of(self._hooks, item.capture)
            tail = any(layout.tail for layout in layouts)
            need = need_of(item.capture, layouts)
            device = self._device if self.pool.on_gpu else None
            if not rows_fit(need, device=device, host=self._host):
                seen = {
                    "row_bytes": need.together,
                    "free_row_bytes": self._host,
                    "free_device_bytes": self._device,
                }
                raise out_of_memory(self._hooks.model.devices, f"{item.key}: a block of rows", seen)
        return self._forward.forks and not (tail and not item.max_tokens)

    def _refuse(self, item: RunRequest) -> None:
        numbers = {"free_row_bytes": self.pool.host.free, "free_device_bytes": self._forward.budget.free}
        what = f"{item.key}: a prompt of {len(item.prompt)} tokens with max_tokens {item.max_tokens}"
        error = out_of_memory(self._hooks.model.devices, what, numbers)
        self._delivery.end(unread(item, "error", error))

    def _placed(self, one: _Waiting) -> Live | None:
        beginning = self._prefixes.find(one.item) if one.shares else None
        if beginning is not None and beginning.live is None and not self._open(beginning.item, beginning):
            if self.live:
                return None
            self._prefixes.forget(beginning, ever=True)
            beginning = None
        if beginning is not None and not beginning.ready:
            return None
        live = self._open(one.item, fork=beginning)
        if live is None and beginning is not None and not self.live:
            self._evict(beginning, ever=True)  # both do not fit: run it alone
            live = self._open(one.item)
        return live

    def _open(
        self, item: RunRequest, begins: Beginning | None = None, fork: Beginning | None = None
    ) -> Live | None:
        """Give a request its place, and a fork its first tokens and rows; None if there is no room."""
        live = Live(item, self._hooks, self._clock(), begins=begins)
        fork = self._prefixes.find(item, make=False) if begins else fork
        while not self._given(live):
            oldest = self._prefixes.oldest(but=fork)
            if oldest is None:
                return None
            self._evict(oldest)
        if fork is not None and fork.ready and fork.live is not None:
            try:
                self._fork(fork.live, live, fork.tokens)
            except BaseException:
                self._free(live)
                if live.record is not None:
                    live.record.discard()
                raise
        if begins is not None:
            begins.live = live
        self.live.append(live)
        return live

    def _fork(self, source: Context, live: Live, tokens: int) -> None:
        """Give a request the first tokens of another, and their rows."""
        self._forward.fork(source, live, tokens)
        live.computed = live.cached = tokens
        if live.record is not None and source.record is not None:
            live.record.begin_with(source.record.shareable)
        self.shared += tokens

    def _given(self, live: Live) -> bool:
        """Tokens of the forward and, for a request that captures, its record with a block of rows."""
        if not self._forward.place(live):
            return False
        plan = live.item.capture
        if plan is None or not plan.hooks:
            return True
        try:
            live.points = self.taps.open(plan)
            if live.points is not None:
                record = Record(live.item, plan, live.points.regions, self.pool, live.generated)
                if self._counted(record):
                    live.record = record
        finally:
            if live.record is None:
                if live.points is not None:
                    self.taps.close(live.points)
                    live.points = None
                self._forward.leave(live)
        return live.record is not None

    def _counted(self, record: Record) -> bool:
        """Count what a record holds from its start to its end; False if there is no room."""
        if not self.pool.reserve_on_host(record.need.held):
            return False
        counted = False
        try:
            if self.pool.reserve(record.need.sums):
                try:
                    # with a block from the start, one of the live requests can always go on
                    counted = record.reserve(1, 1)
                finally:
                    if not counted:
                        self.pool.memory.give(record.need.sums)
        finally:
            if not counted:
                self.pool.host.give(record.need.held)
        return counted

    def _free(self, live: Live) -> None:
        self._forward.leave(live)
        if live.record is not None and live.points is not None:
            self.taps.close(live.points)
            self.pool.host.give(live.record.need.held)
            self.pool.memory.give(live.record.need.sums)

    def _evict(self, beginning: Beginning, *, ever: bool = False) -> None:
        """Free the tokens and rows of a beginning that does not run."""
        self._prefixes.forget(beginning, ever=ever)
        live = beginning.live
        if isinstance(live, Live):
            self._free(live)
            if live.record is not None:
                live.record.discard()


def _bytes(live: Live) -> int:
    return 0 if live.record is None else live.record.bytes


def check(item: RunRequest, hooks: ModelHooks) -> None:
    """Refuse a request that the model cannot run.

    Raises:
        InvalidRequest, ContextLengthExceeded, UnknownHook: the request is at fault.
    """
    context, vocabulary = hooks.structure.context_length, hooks.structure.vocab_size
    prompt = len(item.prompt)
    if not prompt:
        raise InvalidRequest(f"{item.key}: the prompt has no tokens", param="prompt")
    if min(item.prompt) < 0 or max(item.prompt) >= vocabulary:
        raise InvalidRequest(f"{item.key}: token ids must be from 0 to {vocabulary - 1}", param="prompt")
    if not item.max_tokens and prompt > context:
        raise ContextLengthExceeded(
            f"{item.key}: the text has {prompt} tokens; the model's context is {context}", param="prompt"
        )
    if prompt + item.max_tokens > context:
        raise ContextLengthExceeded(
            f"{item.key}: prompt ({prompt} tokens) and max_tokens ({item.max_tokens}) need "
            f"{prompt + item.max_tokens} tokens; the model's context is {context}",
            param="max_tokens",
        )
    switch = hooks.structure.position_switch
    if switch is not None and prompt <= switch < item.most:
        raise InvalidRequest(
            f"{item.key}: prompt ({prompt} tokens) and max_tokens ({item.max_tokens}) cross {switch} tokens, "
            f"where this model's positions change for all tokens of a text; lower max_tokens to "
            f"{switch - prompt + 1}, or give a prompt of more than {switch} tokens",
            param="max_tokens",
        )
    for edit in item.request.edits:
        if edit.vector is not None:
            check_width(edit.hook, len(edit.vector), hooks.width_of(edit.hook), "interventions")
