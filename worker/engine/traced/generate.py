"""Generation: every prompt continued in one batch, rows of the hooks handed over on the way."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch

from actograph.contract.resources import ModelStructure
from actograph.contract.specs import SamplingSpec
from worker.engine.edits.interventions import Editor
from worker.engine.edits.request_edits import editor_of
from worker.engine.locations import place_of
from worker.engine.model import memory
from worker.engine.model.learned_limit import LearnedLimit
from worker.engine.model.loaded import LoadedModel
from worker.engine.requests import (
    BufferOptions,
    Generation,
    GenerationRequest,
    Positions,
    RowShaping,
    RowSink,
)
from worker.engine.rows.held_rows import Point
from worker.engine.rows.rows import RowStream
from worker.engine.rows.step_values import StepValues
from worker.engine.tokens.generation_inputs import generation_inputs
from worker.engine.tokens.logprobs import LogprobRecorder
from worker.engine.tokens.prompt_scores import PromptScores, with_scores
from worker.engine.tokens.stopping import RowTracker, StopStrings, TextEnds
from worker.engine.traced import ladder, tracing
from worker.engine.traced.point_reader import PointReader

#: the requests of a batch, and the growing list of each one's tokens
OnBatch = Callable[[Sequence[int], Sequence[Sequence[int]]], None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Generate:
    """One call to `Engine.generate`: everything that its batches have in common."""

    model: LoadedModel
    structure: ModelStructure
    flat: frozenset[str]
    edited_at: Callable[[str], str]
    head: str  # location of its output
    head_is_logits: bool
    requests: Sequence[GenerationRequest]
    sampling: SamplingSpec
    reads: Sequence[tuple[str, Point]]  # in execution order
    positions: Positions
    dtype: torch.dtype | None
    shaping: RowShaping
    sink: RowSink | None
    should_stop: Callable[[], bool]
    on_step: Callable[[int], None] | None
    capture_of: memory.CaptureOf
    options: BufferOptions
    time_limit: float | None
    should_drop: Callable[[int], bool] | None
    on_batch: OnBatch | None
    learned: LearnedLimit  # told of what fits, in bytes

    def run(self, batches: Sequence[Sequence[int]]) -> list[Generation]:
        """One `Generation` for each request, in their order.

        Args:
            batches: requests that may be run together.
        """
        done: dict[int, Generation] = {}
        devices = self.model.devices
        sparing = replace(self, options=ladder.sparing(self.options))

        def attempt(batch: Sequence[int], spare: int) -> None:
            memory.reset_peak(devices)
            try:
                done.update((sparing if spare else self)._run(batch))
            except Exception as error:
                if memory.is_out_of_memory(error):
                    self.learned.failed(self._need(batch), len(batch))
                raise
            if all(done[i].finish_reason != "cancelled" for i in batch):
                self.learned.passed(self._need(batch))

        def reset(batch: Sequence[int]) -> None:
            if self.sink is not None and self.reads:
                for index in batch:
                    self.sink.reset(index)

        def give_up(index: int, seen: Mapping[str, int]) -> None:
            request = self.requests[index]
            what = f"a prompt of {len(request.prompt_ids)} tokens with max_tokens {self._limit(index)}"
            done[index] = _failed(request, memory.out_of_memory(devices, what, seen))

        ladder.descend(
            batches,
            attempt=attempt,
            reset=reset,
            observe=lambda: memory.memory_snapshot(devices),
            give_up=give_up,
            spares=int(bool(self.reads) and sparing.options != self.options),
        )
        return [done[i] for i in range(len(self.requests))]

    def _limit(self, index: int) -> int:
        """Most tokens of a request."""
        return self.requests[index].max_tokens or self.sampling.max_tokens

    def _need(self, batch: Sequence[int]) -> int:
        """Bytes that a batch takes by the plan's arithmetic."""
        longest = max(len(self.requests[i].prompt_ids) for i in batch)
        return memory.batch_need(
            self.model,
            self.structure,
            self.capture_of(longest),
            prompt_tokens=longest,
            max_tokens=max(map(self._limit, batch)),
            samples=len(batch),
        )

    def _run(self, batch: Sequence[int]) -> dict[int, Generation]:
        """One batch, from padding to the last row in the sink."""
        chosen = [self.requests[i] for i in batch]
        tracker = self._tracker(batch)
        if self.on_batch is not None:
            self.on_batch(batch, tracker.tokens)
        logprobs = LogprobRecorder(chosen) if any(r.top_logprobs is not None for r in chosen) else None
        inputs = generation_inputs(self.model, chosen, self.sampling, tracker, logprobs)
        editor = self._editor(chosen, tracker.tokens)
        scores = PromptScores.of_batch(
            self.model, self.head, chosen, head_is_logits=self.head_is_logits, editor=editor
        )
        with nullcontext() if scores is None else scores.on():
            errors = self._model_runs(batch, inputs | (scores.inputs() if scores else {}), editor, tracker)
        if editor is not None:
            errors.update(editor.errors([len(tokens) for tokens in tracker.tokens]))
        found = self._generations(batch, tracker, errors, logprobs)
        if scores is None:
            return found
        return {index: with_scores(found[index], scores, row) for row, index in enumerate(batch)}

    def _model_runs(
        self, batch: Sequence[int], inputs: Mapping[str, object], editor: Editor | None, tracker: RowTracker
    ) -> dict[int, BaseException]:
        """Generate, rows read on the way; row of the batch -> what its sink raised."""
        if self.reads and self.sink is not None:
            stream = self._stream(batch, tracker, self.sink)
            try:
                self._trace(inputs, editor, stream, len(batch))
                cancelled = [row for row, reason in enumerate(tracker.reasons) if reason == "cancelled"]
                stream.give_up(cancelled)
                if len(cancelled) == len(batch) or not stream.finish([len(t) for t in tracker.tokens]):
                    tracker.reasons[:] = ["cancelled"] * len(batch)  # no sample's rows are complete
                    return {}
                return {row: error for row, error in stream.errors.items() if row not in cancelled}
            finally:
                stream.close()
        if editor is not None:
            tracing.generate(self.model, inputs, [editor], editor.modules)
        else:
            with torch.inference_mode():
                self.model.lm.generate(**inputs)
        return {}

    def _tracker(self, batch: Sequence[int]) -> RowTracker:
        limits, stop, asked = [self._limit(i) for i in batch], self.sampling.stop, self.should_drop
        tokenizer, ends = self.model.tokenizer, [self.requests[i].stop_at for i in batch]
        return RowTracker(
            rows=len(batch),
            max_tokens=max(limits),
            limits=limits,
            eos_ids=self.model.eos_token_ids,
            stops=StopStrings(stop, tokenizer) if stop else None,
            own_stops=[TextEnds(end, tokenizer) if end else None for end in ends] if any(ends) else (),
            should_stop=self.should_stop,
            on_step=self.on_step,
            device=self.model.device,
            time_limit=self.time_limit,
            should_drop=None if asked is None else lambda row: asked(batch[row]),
        )

    def _stream(self, batch: Sequence[int], tracker: RowTracker, sink: RowSink) -> RowStream:
        chosen = [self.requests[i] for i in batch]
        lengths = [len(r.prompt_ids) for r in chosen]
        return RowStream(
            [point for _, point in self.reads],
            prompt_lengths=lengths,
            padded_length=max(lengths),
            indices=batch,
            positions=self.positions,
            dtype=self.dtype,
            shaping=self.shaping,
            prompt_ids=[r.prompt_ids for r in chosen],
            generated_ids=tracker.tokens,
            choosers=[r.chooser for r in chosen] if any(r.chooser for r in chosen) else (),
            earlier=[r.earlier for r in chosen] if any(r.earlier for r in chosen) else (),
            options=self.options,
            sink=sink,
            ended_at=tracker.ended_at,
            should_stop=self.should_stop,
        )

    def _trace(
        self, inputs: Mapping[str, object], editor: Editor | None, stream: RowStream, rows: int
    ) -> None:
        """Generate; what the edits leave behind is read."""
        locations = [location for location, _ in self.reads]
        reader = PointReader(
            self.model.lm,
            locations,
            StepValues(stream, points=len(locations)).take,
            batch=rows,
            flat=self.flat,
            copied=stream.copied_points,
        )
        modules = [place_of(location).path for location in locations]
        if editor is None:
            tracing.generate(self.model, inputs, [reader], modules)
        else:
            tracing.generate(self.model, inputs, [editor, reader], [*editor.modules, *modules])

    def _editor(
        self, requests: Sequence[GenerationRequest], generated_ids: Sequence[Sequence[int]]
    ) -> Editor | None:
        """What makes the requests' edits; None where nothing is to be changed."""
        return editor_of(
            self.model,
            requests,
            edited_at=self.edited_at,
            flat=self.flat,
            generated_ids=generated_ids,
            head=self.head,
        )

    def _generations(
        self,
        batch: Sequence[int],
        tracker: RowTracker,
        errors: Mapping[int, BaseException],
        logprobs: LogprobRecorder | None,
    ) -> dict[int, Generation]:
        """Request index -> what came of it."""
        found = {}
        for row, index in enumerate(batch):
            request = self.requests[index]
            found[index] = Generation(
                key=request.key,
                prompt_ids=request.prompt_ids,
                generated_ids=tuple(tracker.tokens[row]),
                finish_reason=tracker.reasons[row],
                error=errors.get(row),
                logprobs=None if logprobs is None else logprobs.of(row, len(tracker.tokens[row])),
            )
        return found


def _failed(request: GenerationRequest, error: BaseException) -> Generation:
    return Generation(
        key=request.key, prompt_ids=request.prompt_ids, generated_ids=(), finish_reason="error", error=error
    )
