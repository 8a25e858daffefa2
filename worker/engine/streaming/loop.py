"""The decode loop: requests come and go between steps, each step is one packed forward pass."""

import gc
import logging
import time
from collections.abc import Callable

import torch
from torch import Tensor

from actograph.contract.errors import ActographError
from worker.engine.locations import ModelHooks
from worker.engine.model.device_errors import is_out_of_memory
from worker.engine.request_checks import check_request
from worker.engine.requests import BufferOptions, FinishReason, Generation
from worker.engine.runs import (
    CapturePlan,
    RequestSource,
    RunControl,
    RunPlan,
    RunRequest,
    RunStatistics,
)
from worker.engine.streaming import pack as packs
from worker.engine.streaming.capture.buffers import HeldRows
from worker.engine.streaming.capture.delivery import Delivery
from worker.engine.streaming.capture.lane import Lane
from worker.engine.streaming.choice import TokenChoice
from worker.engine.streaming.edits import RowEdits, StepEditor
from worker.engine.streaming.live import Endings, Live
from worker.engine.streaming.pack import Cascades, Pack
from worker.engine.streaming.scores import PromptScore
from worker.engine.streaming.slots import Prefix, Slots
from worker.engine.streaming.step import running

log = logging.getLogger(__name__)

#: requests at once in a capture plan that is not the run's own: chats beside a drain
GUESTS = 4


class Loop:
    """One run of the streaming engine.

    Args:
        step_tokens: most tokens of one forward pass; a longer prompt takes several.
    """

    def __init__(
        self,
        hooks: ModelHooks,
        slots: Slots,
        plan: RunPlan,
        *,
        source: RequestSource,
        control: RunControl,
        delivery: Delivery,
        options: BufferOptions,
        step_tokens: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._hooks, self._slots, self._plan = hooks, slots, plan
        self._source, self._control, self._delivery = source, control, delivery
        self._options, self._step_tokens, self._clock = options, step_tokens, clock
        model = hooks.model
        self._choice = TokenChoice(model)
        self._endings = Endings(model.eos_token_ids, model.tokenizer, clock)
        self._editor = StepEditor(hooks)
        self._cascades = Cascades(model.device)
        self._lanes: list[Lane] = []
        self._live: list[Live] = []  # in the order in which they were placed
        self._pending: list[RunRequest] = []
        self.statistics = RunStatistics()

    def run(self) -> None:
        """Run until the source is exhausted and everything has ended, or the control stops it."""
        try:
            while self._turn():
                self._delivery.check()
        finally:
            self._editor.close()
            for lane in self._lanes:
                lane.close()

    def _turn(self) -> bool:
        """Place requests and run one step; False at the end."""
        if self._control.should_stop():
            self._cancel()
            return False
        self._pull()
        self._drop_unread()
        self._place_pending()
        if not self._live:
            return bool(self._pending) or not self._source.exhausted
        try:
            self._step()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            self._start_over(error)
        self._control.progressed(self.statistics.steps)
        return True

    # places

    def _pull(self) -> None:
        room = self._slots.free - len(self._pending)
        if room > 0 and not self._source.exhausted:
            idle = not self._live and not self._pending
            self._pending += self._source.pull(room, idle=idle)

    def _drop_unread(self) -> None:
        """End dropped requests before their first token; later ones end with one."""
        drops = self._control.should_drop
        for live in [row for row in self._live if not row.decodes and drops(row.request.key)]:
            self._retire(live, "dropped")
        for item in [item for item in self._pending if drops(item.request.key)]:
            self._pending.remove(item)
            self._refuse(item, "dropped")

    def _place_pending(self) -> None:
        """Place requests in their order; one that needs larger slots than there are holds up the rest."""
        waiting: list[RunRequest] = []
        for place, item in enumerate(self._pending):
            try:
                check_request(self._hooks, item.request, (item.plan or self._plan).sampling.max_tokens)
                if not self._slots.free or not self._fit(item):
                    waiting += self._pending[place:]
                    break
                if not self._place(item):
                    waiting.append(item)
            except ActographError as error:
                self._refuse(item, "error", error)
        self._pending = waiting

    def _fit(self, item: RunRequest) -> bool:
        """Make the slots large enough for a request; False if it must wait for that."""
        need = self._need(item)
        if not self._slots.cache.slots:
            # at the start, for all that are known; those at fault are refused later
            context = self._hooks.structure.context_length
            need = max(need, *(min(self._need(other), context) for other in self._pending))
        return self._slots.fit(need, self._live)

    def _place(self, item: RunRequest) -> bool:
        """Give a request a slot; False if its rows must wait for a place."""
        request, plan = item.request, item.plan or self._plan
        generated: list[int] = []
        edits = RowEdits(request, self._hooks, generated)
        lane, record = self._lane(plan.capture, self._need(item)), None
        if lane is not None:
            record = lane.open(request, generated, wait=not self._live)
            if record is None:
                return False
            lane.users += 1
        prefix = self._slots.prefix(request, edits, record)
        slot = self._slots.take(prefix)
        live = Live(request, plan, slot, self._clock(), edits, generated, lane, record)
        live.score = PromptScore(request) if request.score_prompt else None
        if prefix is not None:
            self._share(live, prefix)
        self._slots.hold(live)
        self._live.append(live)
        self._control.started(request, generated)
        return True

    def _need(self, item: RunRequest) -> int:
        """Tokens of a request's slot."""
        plan = item.plan or self._plan
        return len(item.request.prompt_ids) + (item.request.max_tokens or plan.sampling.max_tokens)

    def _lane(self, capture: CapturePlan | None, tokens: int) -> Lane | None:
        if capture is None or not capture.hooks:
            return None
        for lane in self._lanes:
            if lane.plan == capture:
                return lane
        requests = self._slots.cache.slots if capture == self._plan.capture else GUESTS
        tokens = self._slots.cache.capacity if capture == self._plan.capture else tokens
        self._lanes.append(
            Lane(self._hooks, capture, requests=requests, tokens=tokens, options=self._options)
        )
        return self._lanes[-1]

    def _share(self, live: Live, prefix: Prefix) -> None:
        """Take over a prefix that is computed; wait for one that is not."""
        source, tokens = prefix.source, prefix.tokens
        needs_rows = live.record is not None and live.record.kept.needs_prompt(tokens)
        if source.computed < tokens:
            live.waits_for = (source, tokens)
            if needs_rows and source.record is not None:
                source.record.wanted = max(source.record.wanted, tokens)
            return
        live.waits_for = None
        if needs_rows and not self._take_rows(live, source, tokens):
            return
        if source.slot != live.slot:
            self._slots.cache.copy(source.slot, live.slot, tokens)
        live.computed = tokens
        self.statistics.shared_tokens += tokens

    def _take_rows(self, live: Live, source: Live, tokens: int) -> bool:
        """Write the rows of a prefix as a request's first; False if they have left already."""
        assert live.record is not None
        held = source.held(live.record.buffers)
        if held is not None and held.tokens >= tokens:
            rows: HeldRows | None = held.first(tokens)
        elif source.record is not None and source.record.buffers is live.record.buffers:
            rows = source.record.hold(tokens)
        else:
            rows = None
        if rows is None:
            return False
        for shard in live.record.begin_with(rows):
            self._delivery.put(shard)
        return True

    def _resolve_waits(self) -> None:
        for live in self._live:
            if live.waits_for is not None:
                source, tokens = live.waits_for
                if not self._slots.has(source) or (source.ended and source.computed < tokens):
                    live.waits_for = None
                else:
                    self._share(live, Prefix(source, tokens))

    # steps

    def _step(self) -> None:
        self._resolve_waits()
        pack = packs.plan(self._live, self._step_tokens, self._hooks.structure.vocab_size)
        if not self._make_room(pack):
            return
        logits = self._forward(pack)
        self.statistics.steps += 1
        self.statistics.computed_tokens += pack.tokens
        for part in pack.parts:
            part.live.computed = part.stop
            if part.live.score is not None and part.start < part.live.prompt:
                part.live.score.take(logits[part.kept].to(torch.float32), part.start)
        rows = [part for part in pack.parts if part.chooses]
        if not rows:
            return
        places = [part.kept.stop - 1 for part in rows]
        chosen = self._choice.choose(
            logits if len(places) == len(logits) else logits[places], [part.live for part in rows]
        )
        self.statistics.generated_tokens += len(chosen)
        for part, token in zip(rows, chosen, strict=True):
            part.live.generated.append(token)
            reason = self._endings.reason(part.live, self._control.should_drop)
            if reason is not None:
                self._retire(part.live, reason)

    def _make_room(self, pack: Pack) -> bool:
        """Move records whose place is full to another one; False if the run is to stop meanwhile."""
        for part in pack.parts:
            record = part.live.record
            if record is None or record.room >= part.rows:
                continue
            place = record.buffers.take()
            while place is None:  # the writer gives places back
                self._delivery.check()
                if self._control.should_stop():
                    return False
                place = record.buffers.take()
            self._delivery.put(record.next_place(place))
        return True

    def _forward(self, pack: Pack) -> Tensor:
        """Logits of the tokens that reach the head, [tokens, vocabulary]."""
        model, cache = self._hooks.model, self._slots.cache
        kept = pack.kept or [pack.tokens - 1]
        self._editor.begin(pack.tokens, kept)
        for part in pack.parts:
            if part.live.edits:
                self._editor.add(part.live.edits, part.start, part.stop, part.first)
            part.record()
        for lane in self._lanes:
            lane.begin(pack.tokens, len(kept))
        inputs = packs.inputs(pack, model.device)
        hf = model.hf
        step = packs.step(pack, cache.keys, cache.values, self._cascades, model.device)
        self.statistics.merged_reads += sum((len(p.rows) - 1) * p.tokens for p in step.prefixes)
        with running(step):
            output = hf(
                **inputs,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=0 if len(kept) == pack.tokens else torch.tensor(kept, device=model.device),
            )
        for lane in self._lanes:
            lane.end()
        logits: Tensor = output.logits[0]
        return logits

    # ends

    def _retire(self, live: Live, reason: FinishReason) -> None:
        """End a request: its rows and its result leave, its slot is free."""
        self._live.remove(live)
        if live.record is not None and live.lane is not None:
            if reason == "cancelled":
                live.record.discard()
            else:
                self._delivery.put(live.record.finish(len(live.generated)))
            if live.lane.plan != self._plan.capture:
                live.record.held = None  # its lane closes, and the rows with it
            self._unlist(live.lane)
        self._delivery.done(live.request, live.generation(reason))
        self._slots.leave(live)

    def _unlist(self, lane: Lane) -> None:
        """Close a guest's lane after its last request."""
        lane.users -= 1
        if not lane.users and lane.plan != self._plan.capture:
            lane.close()
            self._lanes.remove(lane)

    def _cancel(self) -> None:
        for live in list(self._live):
            self._retire(live, "cancelled")
        for item in self._pending:
            self._refuse(item, "cancelled")
        self._pending.clear()

    def _refuse(self, item: RunRequest, reason: FinishReason, error: BaseException | None = None) -> None:
        """End a request that never had a slot."""
        request = item.request
        made = Generation(
            key=request.key,
            prompt_ids=request.prompt_ids,
            generated_ids=(),
            finish_reason=reason,
            error=error,
        )
        self._delivery.done(request, made)

    def _start_over(self, error: BaseException) -> None:
        """Run everything again with half of the slots, or give up a request that does not fit alone."""
        running_now = list(self._live)
        again: list[RunRequest] = []
        for live in running_now:
            if live.record is not None and live.lane is not None:
                live.record.discard()
                self._unlist(live.lane)
            item = RunRequest(live.request, live.plan)
            self._delivery.reset(live.request.key)
            if len(running_now) == 1:
                self._refuse(item, "error", error)
            else:
                again.append(item)
        log.warning("out of memory with %d requests; running them again with fewer", len(running_now))
        self._live.clear()
        self._pending = again + self._pending
        self._slots.shrink(len(running_now) // 2)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
