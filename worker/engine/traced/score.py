"""Scoring: the log probabilities of given texts' own tokens; nothing is generated and nothing captured."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from worker.engine.edits.request_edits import editor_of
from worker.engine.model import memory
from worker.engine.model.learned_limit import LearnedLimit
from worker.engine.model.loaded import LoadedModel
from worker.engine.requests import Generation, GenerationRequest
from worker.engine.tokens.padding import padded_inputs
from worker.engine.tokens.prompt_scores import PromptScores, with_scores
from worker.engine.traced import ladder, tracing


@dataclass(frozen=True, kw_only=True, slots=True)
class Score:
    """One call to `Engine.score`: everything that its batches have in common."""

    model: LoadedModel
    flat: frozenset[str]
    edited_at: Callable[[str], str]
    head: str  # location of its output
    head_is_logits: bool
    requests: Sequence[GenerationRequest]
    should_stop: Callable[[], bool]
    limit: LearnedLimit  # told of what fits, in padded tokens

    def run(self, batches: Sequence[Sequence[int]]) -> list[Generation]:
        """One `Generation` for each request, in their order.

        Args:
            batches: requests that may be run together.
        """
        done: dict[int, Generation] = {}
        devices = self.model.devices

        def attempt(batch: Sequence[int], spare: int) -> None:
            memory.reset_peak(devices)
            tokens = len(batch) * max(len(self.requests[i].prompt_ids) for i in batch)
            try:
                done.update(self._run(batch))
            except Exception as error:
                if memory.is_out_of_memory(error):
                    self.limit.failed(tokens, len(batch))
                raise
            self.limit.passed(tokens)

        def give_up(index: int, seen: Mapping[str, int]) -> None:
            what = f"a text of {len(self.requests[index].prompt_ids)} tokens"
            done[index] = self._outcome(index, error=memory.out_of_memory(devices, what, seen))

        ladder.descend(
            batches,
            attempt=attempt,
            reset=lambda batch: None,
            observe=lambda: memory.memory_snapshot(devices),
            give_up=give_up,
            spares=0,
        )
        return [done[i] for i in range(len(self.requests))]

    def _run(self, batch: Sequence[int]) -> dict[int, Generation]:
        if self.should_stop():
            return {index: self._outcome(index, cancelled=True) for index in batch}
        chosen = [self.requests[i] for i in batch]
        editor = editor_of(self.model, chosen, edited_at=self.edited_at, flat=self.flat)
        scores = PromptScores(
            self.model, self.head, chosen, head_is_logits=self.head_is_logits, editor=editor
        )
        inputs = padded_inputs(self.model, chosen) | scores.inputs()
        with scores.on():
            if editor is not None:
                tracing.forward(self.model, inputs, [editor], editor.modules)
            else:
                with torch.inference_mode():
                    self.model.hf(**inputs)
        return {index: self._outcome(index, scores=scores, row=row) for row, index in enumerate(batch)}

    def _outcome(
        self,
        index: int,
        *,
        scores: PromptScores | None = None,
        row: int = 0,
        error: BaseException | None = None,
        cancelled: bool = False,
    ) -> Generation:
        request = self.requests[index]
        made = Generation(
            key=request.key,
            prompt_ids=request.prompt_ids,
            generated_ids=(),
            finish_reason="cancelled" if cancelled else "stop" if error is None else "error",
            error=error,
        )
        return made if scores is None or error is not None else with_scores(made, scores, row)
