"""The decode loop: requests get slots, a pass runs the next tokens of all of them, tokens are chosen.

Requests come and go between passes. On a CPU a pass takes one token of each text that is being written, and
chunks of the prompts that are being read. On a GPU these are two passes, which take turns: one of single
tokens, which a CUDA graph can replay, and a long one of prompts. So a text gets a token after each pass of
prompts, and some prompt is read after each token.

On a GPU the host is one pass late: it launches the next pass before it reads the tokens of the last one,
which the device hands on itself. What the next pass has run of a request that the last token ends is left
out. If a pass cannot be planned without a newest token (a grammar, a rule of tokens), the host reads first.
"""

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch

from actograph.contract.errors import ActographError, CaptureFailed, InterventionFailed
from evals.plans import STEP_TOKENS
from worker.engine.capture.budget import Budget
from worker.engine.capture.layouts import BLOCK
from worker.engine.messages import Control, FinishReason, Generation, Results, RunStatistics, Sink, Source
from worker.engine.model.device_errors import is_device_lost, is_out_of_memory, out_of_memory
from worker.engine.model.host_memory import to_device
from worker.engine.model.memory import memory_snapshot
from worker.engine.model_state import ModelState
from worker.engine.pass_hooks import PassHooks, Written
from worker.engine.slot import Slot, unread
from worker.engine.stream import readouts
from worker.engine.stream.choice import TokenChoice
from worker.engine.stream.delivery import Delivery
from worker.engine.stream.endings import Endings
from worker.engine.stream.forward import Forward
from worker.engine.stream.slots import Slots
from worker.engine.tokens.prompt_scores import scored_tokens
from worker.engine.tokens.sampler import Choice, ChosenToken

#: passes of single requests that may fail one after the other before the run does
_BAD_PASSES = 8
#: the same after memory ran out, at least
_LEAST_TOKENS = 16
#: tokens left to prompts however many requests decode
_LEAST_OF_PROMPTS = 16
#: passes that prompts of priority have for themselves one after the other, while other prompts wait
_MOST_ALONE = 8


class _Launched(NamedTuple):
    """A pass whose tokens the host has not read.

    Attributes:
        counts: its slots, each with the tokens that it runs.
        choosing: slots for which it chooses a token.
        read: slots whose prompts, which are only read, it ends.
        written: rows that it writes.
    """

    counts: Sequence[tuple[Slot, int]]
    choosing: Sequence[Slot]
    choice: Choice | None
    read: Sequence[Slot]
    written: Sequence[Written]


class Loop:
    """One run.

    Args:
        budget: of the host's memory, for rows; on a CPU it may be the forward's.
        state: of the model; None: a new one.
        at_hooks: of the model, see `Slots`.
        sink: required by requests that capture.
        most, urgent: see `Slots`.
        step_tokens: tokens of one pass.
        apart: prompts are read in passes of their own.
        shard_bytes: rows of a request that are gathered before they leave.
        late: whether the host reads the tokens of a pass after it has launched the next one; None: on a GPU.
        clock: seconds, for time limits.
    """

    def __init__(
        self,
        forward: Forward,
        budget: Budget,
        *,
        state: ModelState | None = None,
        at_hooks: PassHooks | None = None,
        source: Source,
        control: Control,
        results: Results,
        sink: Sink | None = None,
        most: int = 32,
        urgent: int = 2,
        step_tokens: int = STEP_TOKENS,
        apart: bool = False,
        shard_bytes: int = 256 << 20,
        late: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        model = forward.hooks.model
        self._forward, self._source, self._control, self._results = forward, source, control, results
        self._step_tokens = self._tokens = step_tokens
        self._apart = apart and not forward.rows
        #: a request whose variants are read in this turn, and their tokens at most
        self._varied: tuple[Slot, int] | None = None
        self._alone = 0  # passes since the last one whose prompts were not of priority alone
        self._shard_bytes = shard_bytes
        self._scored = scored_tokens(int(model.text_config.vocab_size))
        self._late = forward.together and (model.device.type == "cuda" if late is None else late)
        self._unread: _Launched | None = None
        if len(forward.next_ids) <= most + urgent:
            raise ValueError(
                f"the forward has room for {len(forward.next_ids) - 1} slots, of {most + urgent}"
            )
        self._choice = TokenChoice(model, forward.next_ids)
        self._opened = -1  # captures that the forward has prepared for
        self._endings = Endings(model.eos_token_ids, model.tokenizer, clock)
        self._delivery = Delivery(sink, results)
        self._slots = Slots(
            forward,
            state or ModelState(forward.hooks),
            budget,
            source,
            self._delivery,
            most=most,
            urgent=urgent,
            step_tokens=step_tokens,
            at_hooks=at_hooks,
            clock=clock,
        )
        self._bad = 0  # passes that failed since the last good one
        #: results of requests whose passes failed since then: they fail if others do not
        self._doubtful: list[Generation] = []
        self.statistics = RunStatistics()

    def run(self) -> RunStatistics:
        """Run until the source is exhausted and everything has ended, or the control stops it.

        Raises:
            Exception: what a callback raised that is not about one request, what makes every pass fail, or a
                bug. All requests end as "cancelled" with that error.
        """
        error: BaseException | None = None
        try:
            with torch.inference_mode():
                while self._turn():
                    self._delivery.check()
                self._read()
        except BaseException as raised:
            error = raised
            raise
        finally:
            self._finish(error)
        self._delivery.check()
        return self.statistics

    def _finish(self, error: BaseException | None) -> None:
        with ExitStack() as last:  # whatever fails: the next run has the same model
            last.callback(self._slots.clear)
            last.callback(self._forward.close)
            last.callback(self._close_delivery, beats=error is None)  # else the error may be the control's
            for generation in self._doubtful:
                self._delivery.end(
                    generation
                    if error is None
                    else replace(generation, finish_reason="cancelled", error=error)
                )
            for slot in list(self._slots.running):
                self._end(slot, "cancelled", error)
            for request in self._slots.waiting:
                self._delivery.end(unread(request, "cancelled", error))
        self.statistics.rows, self.statistics.shared = self._delivery.rows, self._slots.shared

    def _close_delivery(self, *, beats: bool) -> None:
        while not self._delivery.close(0.2):
            if beats:
                self._control.beat()

    def _turn(self) -> bool:
        """One pass, and what comes before it; False at the end."""
        if self._control.stopped():
            return False
        slots = self._slots
        slots.pool.give(self._delivery.take_back())
        self._drop(self._delivery.take_failed())
        while slots.pull():
            slots.fill(self._control.dropped, self._started)
        slots.fill(self._control.dropped, self._started)
        if not slots.running and not slots.waiting:
            self._settle()  # no other pass will tell
        if self._unread is not None and any(slot.waits for slot in self._unread.choosing if not slot.ended):
            self._read()
        self._send_full_shards()
        if self._slots.at_hooks.opened != self._opened:
            self._read()
            # those of an earlier run, too
            self._slots.at_hooks.close_idle()
            self._opened = self._slots.at_hooks.opened
            self._forward.prepare(self._slots.at_hooks)
        before = len(slots.running)
        planned: list[Slot] = []
        for slot in self._planned():
            if not slot.ended and self._prepare(slot, planned):
                planned.append(slot)
        planned = [slot for slot in planned if not slot.ended]  # by a token that had to be read
        for group in self._passes(planned):
            left = [slot for slot in group if not slot.ended]  # a token may have ended some meanwhile
            if left:
                with self._timed():
                    self._run(left)
        with self._timed():
            varied = self._read_variants()
        if not planned and self._unread is not None:
            with self._timed():
                self._read()
        elif not planned and not varied and (slots.running or slots.waiting):
            self.statistics.waits += 1
            self._wait(stuck=before > 0 and len(slots.running) == before)
        self._control.beat()
        return bool(slots.running or slots.waiting) or not self._source.exhausted

    @contextmanager
    def _timed(self) -> Iterator[None]:
        """Count the time as that of passes."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.statistics.pass_seconds += time.monotonic() - began

    def _send_full_shards(self) -> None:
        """Let the rows of requests leave that have many; no pass may be writing to their blocks."""
        full = [
            slot
            for slot in self._slots.running
            if not slot.prefix and slot.record is not None and slot.record.bytes >= self._shard_bytes
        ]
        if full:
            self._read()
        for slot in full:
            if not slot.ended:
                self._slots.send(slot)

    def _wait(self, *, stuck: bool) -> None:
        """Wait for the sink; if it has nothing to write and all are `stuck`, a prefix gives up."""
        if self._delivery.busy:
            self._delivery.wait(0.1)
        elif back := self._delivery.take_back():
            self._slots.pool.give(back)
        elif stuck:
            slot = max(self._slots.running, key=lambda one: one.prefix)
            error = out_of_memory([], f"{slot.key}: a block of its captured rows", {})
            self._end(slot, "error", error)

    def _drop(self, failed: Mapping[str, BaseException]) -> None:
        for slot in [slot for slot in self._slots.running if not slot.prefix]:
            if slot.key in failed:
                self._end(slot, "error", failed[slot.key])
            elif self._control.dropped(slot.key):
                self._end(slot, "dropped")

    def _started(self, slot: Slot) -> None:
        try:
            self._choice.open(slot)
            self._slots.at_hooks.open_edits(slot)
            self._results.started(slot.key, slot.generated)
        except Exception as error:  # noqa: BLE001 (it fails this request alone)
            self._end(slot, "error", error)

    # passes

    def _planned(self) -> list[Slot]:
        """Slots of the next passes, each with its `stop`: single tokens first, then chunks of prompts."""
        decoding, waiting, chunks = list[Slot](), list[Slot](), list[Slot]()
        self._varied = None
        for slot in self._slots.running:
            if slot.goes_on:
                (waiting if slot.prefills or slot.varies else decoding).append(slot)
        for slot in decoding:
            slot.stop = slot.computed + 1
        left, scored = self._prompt_tokens(decoding), self._scored
        in_turn = self._in_turn(waiting)
        for slot in in_turn:
            if slot.varies:
                if self._varied is None:  # half of the pass, if others wait for it
                    count = left if all(one.varies for one in in_turn) else left // 2
                    self._varied, left = (slot, count), left - count
                continue
            rest = slot.prompt - slot.computed
            count = min(left, rest)
            if self._forward.rows:
                count = self._aligned(slot, rest)
                count = count if count <= left or not chunks else 0
            elif slot.needs_all_logits:
                count = min(count, scored)
                scored -= count
            if count > 0:
                count = count if self._forward.chunks else rest
                slot.stop = slot.computed + count
                left -= count
                # a chunk of one token is a single token too
                (decoding if count == 1 else chunks).append(slot)
        return decoding + chunks

    def _prompt_tokens(self, decoding: Sequence[Slot]) -> int:
        """Tokens of prompts to read now."""
        if not self._apart:
            return max(_LEAST_OF_PROMPTS, self._tokens - len(decoding))
        # the next token of a chat waits for this pass
        return min(self._tokens, STEP_TOKENS) if any(slot.priority for slot in decoding) else self._tokens

    def _in_turn(self, waiting: Sequence[Slot]) -> Sequence[Slot]:
        """The prompts that take part in a pass, in their order.

        While a priority request has prompt tokens left, no other prompt takes part, so its first token is
        near; but now and then the others come first, or an endless row of chats would hold them up.
        """
        urgent, others = ([slot for slot in waiting if slot.priority is which] for which in (True, False))
        self._alone = self._alone + 1 if urgent and others else 0
        if self._alone > _MOST_ALONE:
            self._alone = 0
            return others + urgent
        return urgent or others

    def _aligned(self, slot: Slot, rest: int) -> int:
        """Tokens of a prompt in its next pass, if passes have fixed rows: up to a multiple of a number.

        So a prompt is always read in the same pieces, also after a shared prefix, which ends at one too.
        """
        size = self._forward.rows
        if slot.needs_all_logits:
            size = min(size, 1 << (self._scored.bit_length() - 1))
        return min(rest, size - slot.computed % size)

    def _passes(self, planned: Sequence[Slot]) -> list[Sequence[Slot]]:
        """The passes that run these slots."""
        if not self._forward.together:
            return [[slot] for slot in planned]
        if self._apart:
            prompts = [slot for slot in planned if slot.prefills]
            texts = [slot for slot in planned if not slot.prefills]
            # a chat's first token comes before the others' next ones
            return [prompts, texts] if any(slot.priority for slot in prompts) else [texts, prompts]
        most = self._forward.rows
        if not most:
            return [planned]
        single = [slot for slot in planned if slot.count == 1]
        groups: list[Sequence[Slot]] = [single[at : at + most] for at in range(0, len(single), most)]
        return groups + [[slot] for slot in planned if slot.count > 1]

    def _prepare(self, slot: Slot, planned: Sequence[Slot]) -> bool:
        """Plan a slot's edits and rows, and get blocks for them; False if it must wait.

        If the pool is short, it runs fewer tokens.
        """
        try:
            for stop in self._stops(slot):
                slot.run_to(stop)
                if slot.record is None:
                    return True
                slot.rows = slot.record.kept.of(slot.computed, stop)
                first = max(stop - slot.logits, slot.record.tail_from)
                tail = sum(token >= first for token in slot.rows)
                while not (fits := slot.record.reserve(len(slot.rows), tail)):
                    if self._unread is not None:
                        self._read()  # rows that leave early must be counted, and requests may have ended
                        if slot.ended:
                            return False
                    elif self._is_long(slot) or not self._slots.make_room(slot.record, planned):
                        break
                if fits:
                    return True
                if not self._forward.chunks:
                    break
        except Exception as error:  # noqa: BLE001 (it fails this request alone)
            self._end(slot, "error", error)
        return False

    def _stops(self, slot: Slot) -> Iterator[int]:
        """Ends of a slot's next tokens to try one after the other, for which the pool may have no blocks.

        Rows of others leave early for a pass of the usual length, and not for a longer one.
        """
        while self._is_long(slot):
            yield slot.stop
            slot.stop = slot.computed + slot.count // 2
        stop = slot.stop
        yield stop
        yield min(stop, slot.computed + BLOCK)

    def _is_long(self, slot: Slot) -> bool:
        """Whether a slot's next tokens are more than usual, and can be fewer."""
        return self._forward.chunks and slot.count > STEP_TOKENS

    def _run(self, slots: Sequence[Slot], *, again: bool = False) -> None:
        """Run a pass. If that fails, run its halves, until the request at fault is alone.

        Args:
            again: it is a lone request that ran out of memory just now.
        """
        place = 0
        for slot in slots:
            slot.first = place
            place += slot.count
        failure: tuple[Exception, dict[str, int]] | None = None
        launched: _Launched | None = None
        try:
            if again:
                self._recompute(slots[0])
            launched = self._launch(slots)
        except Exception as raised:
            if is_device_lost(raised):
                raise
            # memory is measured while the failed pass holds its tensors, which its frames do
            seen = memory_snapshot(self._forward.hooks.model.devices) if is_out_of_memory(raised) else {}
            failure = raised.with_traceback(None), seen
        self._read()  # of the last pass: its tokens are there, or nearly
        if failure is not None:
            left = [slot for slot in slots if not slot.ended]
            self._choice.set_newest(left)
            if left:
                self._split(left, *failure, again=again)
            return
        self._unread = launched
        self._bad = 0
        self._settle()
        self._tokens = min(self._step_tokens, self._tokens + max(16, self._step_tokens // 32))
        self.statistics.passes += 1
        if not self._late:
            self._read()

    def _read_variants(self) -> bool:
        """Read the planned variants of a request, whose last ones end it. Returns whether there were any."""
        if self._varied is None or self._varied[0].ended:
            return False
        (slot, most), self._varied = self._varied, None
        self._read()  # the prompt may be read by the launched pass
        variants, next_score = slot.variants, slot.next_score
        assert variants is not None
        batch = variants.take(most)
        try:
            logits = self._forward.read_variants(slot, batch, self._slots.at_hooks)
            if next_score is not None:
                next_score.take_variants([one.number for one in batch], logits)
        except Exception as error:
            if is_device_lost(error):
                raise
            self.statistics.retries += 1
            if is_out_of_memory(error) and len(batch) > 1:
                self._shrink()
                variants.put_back(batch)
                return True
            self._fail(slot, error)
            return True
        self._bad = 0
        self._settle()
        self.statistics.passes += 1
        self.statistics.computed += sum(slot.prompt - one.first for one in batch)
        if not variants.left:
            self._end(slot, "stop")
        return True

    def _launch(self, slots: Sequence[Slot]) -> _Launched:
        """Run a pass and choose the next tokens, on a GPU without waiting for either."""
        choosing = [slot for slot in slots if slot.chooses]
        choice = self._chosen(slots, choosing)
        launched = _Launched(
            counts=[(slot, slot.count) for slot in slots],
            choosing=choosing,
            choice=choice,
            read=[slot for slot in slots if slot.reads and slot.stop == slot.prompt],
            written=self._slots.at_hooks.wrote(),
        )
        for slot in slots:
            slot.computed = slot.stop
        for slot in choosing:
            slot.chosen += 1
        return launched

    def _read(self) -> None:
        """Read the tokens of the launched pass: requests take them, and may end; its rows count."""
        launched, self._unread = self._unread, None
        if launched is None:
            return
        chosen = [] if launched.choice is None else launched.choice.read()
        values = readouts.values_of(launched.choosing, launched.written)
        ended = {slot.record for slot, _ in launched.counts if slot.ended}
        unkept = self._slots.at_hooks.note([one for one in launched.written if one.record not in ended])
        for slot, count in launched.counts:
            if slot.ended:
                continue
            self.statistics.computed += count
            error = unkept.get(slot.record) if slot.record is not None else None
            if error is not None:
                self._end(slot, "error", error)
        for slot in launched.read:
            if not slot.ended and slot.variants is None:
                self._end(slot, "stop")
        for slot, token in zip(launched.choosing, chosen, strict=True):
            if not slot.ended:
                self.statistics.generated += 1
                self._take(slot, token, values.get(slot, {}))

    def _recompute(self, slot: Slot) -> None:
        """Run the tokens before a pass again, as they ran before, if its failure has spoilt them.

        Their rows are kept already and their successors chosen.
        """
        stop, rows = slot.stop, slot.rows
        start, slot.rows = slot.computed, ()
        slot.computed = self._forward.restart(slot)
        while slot.computed < start:
            slot.run_to(slot.prompt if slot.prefills else slot.computed + 1)
            self._forward.run([slot], self._slots.at_hooks)
            self._control.beat()
            slot.computed = slot.stop
        slot.run_to(stop)
        slot.rows = rows

    def _chosen(self, slots: Sequence[Slot], choosing: Sequence[Slot]) -> Choice | None:
        """Run a pass, and choose the next tokens; scored prompts take their logits."""
        logits = self._forward.run(slots, self._slots.at_hooks)
        at, last = 0, []
        for slot in slots:
            if slot.score is not None and slot.prefills:
                slot.score.take(logits[at : at + slot.logits], slot.computed)
            at += slot.logits
            if slot.next_score is not None and slot.stop == slot.prompt:
                slot.next_score.take(logits[at - 1])
            if slot.chooses:
                last.append(at - 1)
        if not choosing:
            return None
        if len(last) < len(logits):
            logits = logits.index_select(0, to_device(np.array(last), logits.device))
        return self._choice.choose(logits, choosing)

    def _split(self, slots: Sequence[Slot], error: Exception, seen: dict[str, int], *, again: bool) -> None:
        """Run the halves of a failed pass; a request that fails alone, twice if it is for memory, ends."""
        self.statistics.retries += 1
        full = is_out_of_memory(error)
        if full:
            self._shrink()
        if len(slots) > 1:
            self._run(slots[: len(slots) // 2])
            self._run(slots[len(slots) // 2 :])
            return
        (slot,) = slots
        if full and self._forward.together and not self._forward.rows and slot.count > _LEAST_TOKENS:
            return  # the next pass takes fewer of its tokens
        if full and not again:  # with the memory that was freed above
            self._run(slots, again=True)
            return
        self._fail(slot, error, seen)

    def _shrink(self) -> None:
        """After memory ran out: free what can be freed, and let passes take fewer tokens for a while."""
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        self._tokens = max(_LEAST_TOKENS, self._tokens // 2)  # grows again with each good pass

    def _fail(self, slot: Slot, error: Exception, seen: Mapping[str, int] = MappingProxyType({})) -> None:
        """End a request that failed alone, or the run if too many have. Raises the error then."""
        self._bad += 1
        if self._bad > _BAD_PASSES:
            raise error  # it is not the requests
        if is_out_of_memory(error):
            what = f"a prompt of {slot.prompt} tokens with max_tokens {slot.request.most_generated}"
            error = out_of_memory(self._forward.hooks.model.devices, what, dict(seen))
        self._doubt(slot, error)

    def _doubt(self, slot: Slot, error: Exception) -> None:
        """End a request whose passes fail; its result waits until it is known that not all passes do."""
        self._choice.close(slot)
        self._slots.leave(slot, failed=True)
        if not slot.prefix:
            if slot.record is not None:
                slot.record.discard()
            self._doubtful.append(slot.generation("error", error))

    def _settle(self) -> None:
        """Other passes work, or there are none: the requests whose passes failed are at fault themselves."""
        for generation in self._doubtful:
            self._delivery.end(generation)
        self._doubtful.clear()

    # tokens and ends

    def _take(self, slot: Slot, chosen: ChosenToken, values: Mapping[str, float]) -> None:
        """Add a token to a request, and end the request if it is the last one.

        Args:
            values: of readouts, of the token before it.
        """
        try:
            if chosen.token < 0:
                raise _not_numbers(slot)
            if values and slot.request.live:
                self._results.valued(slot.key, slot.computed - 1, values)
            if any(one.name in values and one.crossed(values[one.name]) for one in slot.request.stops):
                slot.withhold(chosen.token, chosen.logprobs)
                self._end(slot, "readout")
                return
            if values and slot.edits is not None:
                slot.edits.begin(values, slot.computed)
            slot.take(chosen.token, chosen.logprobs)
            reason = self._endings.reason(slot)
        except Exception as error:  # noqa: BLE001 (it fails this request alone)
            self._end(slot, "error", error)
            return
        if reason is not None:
            self._end(slot, reason)

    def _end(self, slot: Slot, reason: FinishReason, error: BaseException | None = None) -> None:
        """Let a request's rows and result leave, and free its slot."""
        self._choice.close(slot)
        self._slots.leave(slot, failed=reason != "stop")
        if slot.prefix:
            return
        if slot.record is not None:
            try:
                if reason in ("error", "cancelled"):
                    slot.record.discard()
                else:
                    self._delivery.write(slot.key, slot.record.finish(len(slot.generated_ids)))
            except Exception as raised:  # noqa: BLE001 (of a summary: it fails this request alone)
                slot.record.discard()
                reason, error = "error", raised
        self._delivery.end(slot.generation(reason, error))


def _not_numbers(slot: Slot) -> ActographError:
    token = len(slot.generated)
    if slot.edits:
        return InterventionFailed(
            f"the interventions drove the model to values that are not numbers (NaN) when it chose "
            f"generated token {token}; take a smaller coefficient or vector"
        )
    return CaptureFailed(f"the model's logits of generated token {token} are not numbers (NaN)")
