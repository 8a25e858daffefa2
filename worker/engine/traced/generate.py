"""Generation: all prompts continue in one batch, and rows are captured meanwhile."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch

from actograph.contract.specs import SamplingSpec
from worker.engine.batches import BatchJob, Capture
from worker.engine.edits.interventions import Editor
from worker.engine.locations import place_of
from worker.engine.model import memory
from worker.engine.requests import Generation
from worker.engine.rows.rows import RowStream
from worker.engine.tokens.logprobs import LogprobRecorder
from worker.engine.tokens.model_inputs import generation_inputs
from worker.engine.tokens.prompt_scores import PromptScores, with_scores
from worker.engine.tokens.stopping import RowTracker, StopStrings, TextEnds
from worker.engine.traced import tracing
from worker.engine.traced.point_reader import PointReader

#: indices of a batch's requests, and the growing list of tokens of each
OnBatch = Callable[[Sequence[int], Sequence[Sequence[int]]], None]


@dataclass(frozen=True, kw_only=True)
class Generate(BatchJob):
    """One call to `Engine.generate`; batches are compared in bytes."""

    sampling: SamplingSpec
    on_step: Callable[[int], None] | None
    capture_of: memory.CaptureOf
    time_limit: float | None
    should_drop: Callable[[int], bool] | None
    on_batch: OnBatch | None

    def describe(self, index: int) -> str:
        prompt = len(self.requests[index].prompt_ids)
        return f"a prompt of {prompt} tokens with max_tokens {self._most_tokens(index)}"

    def need(self, batch: Sequence[int]) -> int:
        longest = max(len(self.requests[i].prompt_ids) for i in batch)
        return memory.batch_need(
            self.hooks.model,
            self.hooks.structure,
            self.capture_of(longest),
            prompt_tokens=longest,
            max_tokens=max(map(self._most_tokens, batch)),
            samples=len(batch),
        )

    def run_batch(self, batch: Sequence[int]) -> dict[int, Generation]:
        chosen, model = [self.requests[i] for i in batch], self.hooks.model
        tracker = self._tracker(batch)
        if self.on_batch is not None:
            self.on_batch(batch, tracker.tokens)
        logprobs = LogprobRecorder(chosen) if any(r.top_logprobs is not None for r in chosen) else None
        inputs = generation_inputs(model, chosen, self.sampling, tracker, logprobs)
        editor = self.editor(chosen, generated_ids=tracker.tokens)
        scores = None
        if any(request.score_prompt for request in chosen):
            scores = PromptScores(self.hooks, chosen, editor=editor)
        with nullcontext() if scores is None else scores.on():
            inputs |= scores.inputs() if scores else {}
            if self.capture is not None:
                errors = self._captured(batch, self.capture, inputs, editor, tracker)
            else:
                self._uncaptured(inputs, editor)
                errors = {}
        if editor is not None:
            errors.update(editor.errors([len(tokens) for tokens in tracker.tokens]))
        made = self._generations(batch, tracker, errors, logprobs)
        if scores is None:
            return made
        return {index: with_scores(made[index], scores, row) for row, index in enumerate(batch)}

    def _most_tokens(self, index: int) -> int:
        """max_tokens of one request."""
        return self.requests[index].max_tokens or self.sampling.max_tokens

    def _tracker(self, batch: Sequence[int]) -> RowTracker:
        limits = [self._most_tokens(i) for i in batch]
        ends = [self.requests[i].stop_at for i in batch]
        stop, should_drop, model = self.sampling.stop, self.should_drop, self.hooks.model
        tokenizer = model.tokenizer
        return RowTracker(
            rows=len(batch),
            max_tokens=max(limits),
            limits=limits,
            eos_ids=model.eos_token_ids,
            stops=StopStrings(stop, tokenizer) if stop else None,
            own_stops=[TextEnds(end, tokenizer) if end else None for end in ends] if any(ends) else (),
            should_stop=self.should_stop,
            on_step=self.on_step,
            device=model.device,
            time_limit=self.time_limit,
            should_drop=None if should_drop is None else lambda row: should_drop(batch[row]),
        )

    def _captured(
        self,
        batch: Sequence[int],
        capture: Capture,
        inputs: Mapping[str, object],
        editor: Editor | None,
        tracker: RowTracker,
    ) -> dict[int, BaseException]:
        """Generate and capture rows; row of the batch -> error of its sink."""
        stream = capture.stream(
            batch,
            [self.requests[i] for i in batch],
            generated_ids=tracker.tokens,
            ended_at=tracker.ended_at,
            should_stop=self.should_stop,
        )
        reader = PointReader(
            self.hooks.model.lm,
            capture.locations,
            _Steps(stream, points=len(capture.reads)).take,
            batch=len(batch),
            flat=self.hooks.flat,
            copied=capture.copied,
        )
        modules = [place_of(location).path for location in capture.locations]
        observers: list[tracing.Observer] = [reader]
        if editor is not None:
            observers, modules = [editor, reader], [*editor.modules, *modules]
        try:
            tracing.generate(self.hooks.model, inputs, observers, modules)
            cancelled = [row for row, reason in enumerate(tracker.reasons) if reason == "cancelled"]
            stream.give_up(cancelled)
            if len(cancelled) == len(batch) or not stream.finish([len(t) for t in tracker.tokens]):
                tracker.reasons[:] = ["cancelled"] * len(batch)  # no sample's rows are complete
                return {}
            return {row: error for row, error in stream.errors.items() if row not in cancelled}
        finally:
            stream.close()

    def _uncaptured(self, inputs: Mapping[str, object], editor: Editor | None) -> None:
        if editor is not None:
            tracing.generate(self.hooks.model, inputs, [editor], editor.modules)
            return
        with torch.inference_mode():
            self.hooks.model.lm.generate(**inputs)

    def _generations(
        self,
        batch: Sequence[int],
        tracker: RowTracker,
        errors: Mapping[int, BaseException],
        logprobs: LogprobRecorder | None,
    ) -> dict[int, Generation]:
        """Index of each request -> its generation."""
        made = {}
        for row, index in enumerate(batch):
            request = self.requests[index]
            made[index] = Generation(
                key=request.key,
                prompt_ids=request.prompt_ids,
                generated_ids=tuple(tracker.tokens[row]),
                finish_reason=tracker.reasons[row],
                error=errors.get(row),
                logprobs=None if logprobs is None else logprobs.of(row, len(tracker.tokens[row])),
            )
        return made


class _Steps:
    """Hands a reader's tensors to the row path: prompts point by point, decode steps as a whole.

    So the device never holds the prompt rows of two layers.
    """

    def __init__(self, stream: RowStream, *, points: int) -> None:
        self._stream = stream
        self._last = points - 1
        self._values: list[torch.Tensor] = []
        self._decoding = False

    def take(self, point: int, value: torch.Tensor) -> None:
        """Take one point's tensor [batch, tokens, ...]; the points come in order, pass by pass."""
        if not self._decoding:
            self._stream.prefill(point, value)
            self._decoding = point == self._last
            return
        self._values.append(value)
        if point == self._last:
            values, self._values = self._values, []
            self._stream.decode(values)
