"""The decode loop: pull, place, pack, forward, choose, end. Requests come and go between passes."""

import gc
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
import torch

from actograph.contract.errors import ActographError, CaptureFailed, InterventionFailed
from worker.engine.capture.budget import Budget
from worker.engine.capture.layouts import BLOCK
from worker.engine.capture.parts import Part
from worker.engine.messages import Control, FinishReason, Generation, Results, RunStatistics
from worker.engine.model.device_errors import is_device_lost, is_out_of_memory, out_of_memory
from worker.engine.model.host_memory import to_device
from worker.engine.model.memory import memory_snapshot
from worker.engine.runs import Sink, Source
from worker.engine.stream.choice import TokenChoice
from worker.engine.stream.delivery import Delivery
from worker.engine.stream.live import Endings, Forward, Live, unread
from worker.engine.stream.pack import pack
from worker.engine.stream.places import Places
from worker.engine.stream.scores import scored_tokens
from worker.engine.tokens.sampler import ChosenToken

#: passes of single requests that may fail one after the other before the run does
_BAD_PASSES = 8
#: tokens of one pass by default
STEP_TOKENS = 512
#: the same after memory ran out, at least
_LEAST_TOKENS = 16

_Pair = tuple[Live, Part]


class Loop:
    """One run.

    Args:
        budget: of the host's memory, for rows; on a CPU it may be the forward's.
        sink: required by requests that capture.
        most, urgent: see `Places`.
        step_tokens: tokens of one pass.
        shard_bytes: rows of a request that are gathered before they leave.
        clock: seconds, for time limits.
    """

    def __init__(
        self,
        forward: Forward,
        budget: Budget,
        *,
        source: Source,
        control: Control,
        results: Results,
        sink: Sink | None = None,
        most: int = 32,
        urgent: int = 2,
        step_tokens: int = STEP_TOKENS,
        shard_bytes: int = 256 << 20,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        model = forward.hooks.model
        self._forward, self._source, self._control, self._results = forward, source, control, results
        self._step_tokens = self._tokens = step_tokens
        self._shard_bytes = shard_bytes
        self._scored = scored_tokens(int(model.text_config.vocab_size))
        self._choice = TokenChoice(model)
        self._endings = Endings(model.eos_token_ids, model.tokenizer, clock)
        self._delivery = Delivery(sink, results)
        self._places = Places(
            forward,
            budget,
            source,
            self._delivery,
            most=most,
            urgent=urgent,
            step_tokens=step_tokens,
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
        except BaseException as raised:
            error = raised
            raise
        finally:
            self._finish(error)
        self._delivery.check()
        return self.statistics

    def _finish(self, error: BaseException | None) -> None:
        with ExitStack() as last:  # whatever fails: the next run has the same model
            last.callback(self._places.clear)
            last.callback(self._forward.close)
            last.callback(self._close_delivery, beats=error is None)  # else the error may be the control's
            for generation in self._doubtful:
                self._delivery.end(
                    generation
                    if error is None
                    else replace(generation, finish_reason="cancelled", error=error)
                )
            for live in list(self._places.live):
                self._end(live, "cancelled", error)
            for item in self._places.waiting:
                self._delivery.end(unread(item, "cancelled", error))
        self.statistics.rows, self.statistics.shared = self._delivery.rows, self._places.shared

    def _close_delivery(self, *, beats: bool) -> None:
        while not self._delivery.close(0.2):
            if beats:
                self._control.beat()

    def _turn(self) -> bool:
        """One pass, and what comes before it; False at the end."""
        if self._control.stopped():
            return False
        places = self._places
        places.pool.give(self._delivery.take_back())
        self._drop(self._delivery.take_failed())
        while places.pull():
            places.fill(self._control.dropped, self._started)
        places.fill(self._control.dropped, self._started)
        if not places.live and not places.waiting:
            self._settle()  # no other pass will tell
        pairs: list[_Pair] = []
        before = len(places.live)
        planned = pack(places.live, self._tokens, chunks=self._forward.chunks, scored=self._scored)
        for live, part in planned:
            if self._prepare(live, part, [one for one, _ in pairs]):
                pairs.append((live, part))
        for group in [pairs] if self._forward.together else [[pair] for pair in pairs]:
            if group:
                self._run(group)
        if not pairs and (places.live or places.waiting):
            self.statistics.waits += 1
            self._wait(stuck=before > 0 and len(places.live) == before)
        self._control.beat()
        return bool(places.live or places.waiting) or not self._source.exhausted

    def _wait(self, *, stuck: bool) -> None:
        """Wait for the sink; if it has nothing to write and all are `stuck`, a beginning gives up."""
        if self._delivery.busy:
            self._delivery.wait(0.1)
        elif back := self._delivery.take_back():
            self._places.pool.give(back)
        elif stuck:
            live = max(self._places.live, key=lambda one: one.begins is not None)
            error = out_of_memory([], f"{live.key}: a block of its captured rows", {})
            self._end(live, "error", error)

    def _drop(self, failed: Mapping[str, BaseException]) -> None:
        for live in [live for live in self._places.live if not live.begins]:
            if live.key in failed:
                self._end(live, "error", failed[live.key])
            elif self._control.dropped(live.key):
                self._end(live, "dropped")

    def _started(self, live: Live) -> None:
        try:
            self._choice.open(live)
            self._results.started(live.key, live.generated)
        except Exception as error:  # noqa: BLE001 (it fails this request alone)
            self._end(live, "error", error)

    # passes

    def _prepare(self, live: Live, part: Part, packed: Sequence[Live]) -> bool:
        """Plan a part's edits and rows, and get blocks for them; False if it must wait.

        If the pool is short, the part takes fewer tokens.
        """
        try:
            for stop in (part.stop, min(part.stop, part.start + BLOCK)):
                part.stop, part.logits = stop, live.logits_of(part.start, stop)
                part.writes = live.edits.writes(part.start, stop)
                if live.record is None:
                    return True
                part.rows = live.record.kept.of(part.start, stop)
                first = max(stop - part.logits, live.record.tail_from)
                tail = sum(token >= first for token in part.rows)
                while not (fits := live.record.reserve(len(part.rows), tail)):
                    if not self._places.make_room(live.record, packed):
                        break
                if fits:
                    return True
                if not self._forward.chunks:
                    break
        except Exception as error:  # noqa: BLE001 (it fails this request alone)
            self._end(live, "error", error)
        return False

    def _run(self, pairs: Sequence[_Pair], *, again: bool = False) -> None:
        """Run a pack. If that fails, run its halves, until the request at fault is alone.

        Args:
            again: it is a lone request that ran out of memory just now.
        """
        place = 0
        for _, part in pairs:
            part.first = place
            place += part.count
        choosing = [live for live, part in pairs if live.chooses(part.stop)]
        failure: tuple[Exception, dict[str, int]] | None = None
        chosen: list[ChosenToken] = []
        try:
            if again:
                self._recompute(*pairs[0])
            chosen = self._chosen(pairs, choosing)
        except Exception as raised:
            if is_device_lost(raised):
                raise
            # memory is measured while the failed pass holds its tensors, which its frames do
            seen = memory_snapshot(self._forward.hooks.model.devices) if is_out_of_memory(raised) else {}
            failure = raised.with_traceback(None), seen
        if failure is not None:
            self._split(pairs, *failure, again=again)
            return
        unkept = self._places.taps.note()
        self._bad = 0
        self._settle()
        self._tokens = min(self._step_tokens, self._tokens + 16)
        self.statistics.passes += 1
        self.statistics.computed += place
        self.statistics.generated += len(chosen)
        for live, part in pairs:
            live.computed = part.stop
            error = unkept.get(live.record) if live.record is not None else None
            if error is not None:
                self._end(live, "error", error)
            elif live.reads and part.stop == live.prompt:
                self._end(live, "stop")
        for live, token in zip(choosing, chosen, strict=True):
            if live.record not in unkept:
                self._take(live, token)

    def _recompute(self, live: Live, part: Part) -> None:
        """Run the tokens before a part again, as they ran before, if its failed pass has spoilt them.

        Their rows are kept already and their successors chosen.
        """
        done = self._forward.restart(live)
        while done < part.start:
            stop = live.prompt if done < live.prompt else done + 1
            again = Part(live, done, stop, logits=live.logits_of(done, stop))
            again.writes = live.edits.writes(done, stop)
            self._forward.run([again], self._places.taps)
            self._control.beat()
            done = stop

    def _chosen(self, pairs: Sequence[_Pair], choosing: Sequence[Live]) -> list[ChosenToken]:
        """Run a pass: the next token of each request that chooses; scored prompts take their logits."""
        parts = [part for _, part in pairs]
        logits = self._forward.run(parts, self._places.taps)
        at, last = 0, []
        for live, part in pairs:
            if live.score is not None and part.start < live.prompt:
                live.score.take(logits[at : at + part.logits], part.start)
            at += part.logits
            if live.chooses(part.stop):
                last.append(at - 1)
        if not choosing:
            return []
        if len(last) < len(logits):
            logits = logits.index_select(0, to_device(np.array(last), logits.device))
        return self._choice.choose(logits, choosing)

    def _split(self, pairs: Sequence[_Pair], error: Exception, seen: dict[str, int], *, again: bool) -> None:
        """Run the halves of a failed pack; a request that fails alone, twice if it is for memory, ends."""
        self.statistics.retries += 1
        full = is_out_of_memory(error)
        if full:
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            self._tokens = max(_LEAST_TOKENS, self._tokens // 2)  # grows again with each good pass
        if len(pairs) > 1:
            self._run(pairs[: len(pairs) // 2])
            self._run(pairs[len(pairs) // 2 :])
            return
        live, part = pairs[0]
        if full and self._forward.together and part.count > _LEAST_TOKENS:
            return  # the next pass takes fewer of its tokens
        if full and not again:  # with the memory that was freed above
            self._run(pairs, again=True)
            return
        self._bad += 1
        if self._bad > _BAD_PASSES:
            raise error  # it is not the requests
        if full:
            what = f"a prompt of {live.prompt} tokens with max_tokens {live.item.max_tokens}"
            error = out_of_memory(self._forward.hooks.model.devices, what, seen)
        self._doubt(live, error)

    def _doubt(self, live: Live, error: Exception) -> None:
        """End a request whose passes fail; its result waits until it is known that not all passes do."""
        self._choice.close(live)
        self._places.leave(live, failed=True)
        if live.begins is None:
            if live.record is not None:
                live.record.discard()
            self._doubtful.append(live.generation("error", error))

    def _settle(self) -> None:
        """Other passes work, or there are none: the requests whose passes failed are at fault themselves."""
        for generation in self._doubtful:
            self._delivery.end(generation)
        self._doubtful.clear()

    # tokens and ends

    def _take(self, live: Live, chosen: ChosenToken) -> None:
        """Add a token to a request, and end the request if it is the last one."""
        try:
            if chosen.token < 0:
                raise _not_numbers(live)
            live.take(chosen.token, chosen.logprobs)
            reason = self._endings.reason(live)
        except Exception as error:  # noqa: BLE001 (it fails this request alone)
            self._end(live, "error", error)
            return
        if reason is not None:
            self._end(live, reason)
        elif live.record is not None and live.record.bytes >= self._shard_bytes:
            self._places.send(live)

    def _end(self, live: Live, reason: FinishReason, error: BaseException | None = None) -> None:
        """Let a request's rows and result leave, and free its place."""
        self._choice.close(live)
        self._places.leave(live, failed=reason != "stop")
        if live.begins is not None:
            return
        if live.record is not None:
            try:
                if reason in ("error", "cancelled"):
                    live.record.discard()
                else:
                    self._delivery.write(live.key, live.record.finish(len(live.generated)))
            except Exception as raised:  # noqa: BLE001 (of a summary: it fails this request alone)
                live.record.discard()
                reason, error = "error", raised
        self._delivery.end(live.generation(reason, error))


def _not_numbers(live: Live) -> ActographError:
    token = len(live.generated)
    if live.edits:
        return InterventionFailed(
            f"the interventions drove the model to values that are not numbers (NaN) when it chose "
            f"generated token {token}; take a smaller coefficient or vector"
        )
    return CaptureFailed(f"the model's logits of generated token {token} are not numbers (NaN)")
