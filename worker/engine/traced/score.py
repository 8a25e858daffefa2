"""Scoring: log probabilities of the tokens of given texts; nothing is generated or captured."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from worker.engine.batches import ReadingJob
from worker.engine.requests import Generation
from worker.engine.tokens.model_inputs import padded_inputs
from worker.engine.tokens.prompt_scores import PromptScores, with_scores
from worker.engine.traced import tracing


@dataclass(frozen=True, kw_only=True)
class Score(ReadingJob):
    """One call to `Engine.score`."""

    def run_batch(self, batch: Sequence[int]) -> dict[int, Generation]:
        if self.should_stop():
            return {index: self.ended(index, cancelled=True) for index in batch}
        chosen, model = [self.requests[i] for i in batch], self.hooks.model
        editor = self.editor(chosen)
        scores = PromptScores(self.hooks, chosen, editor=editor)
        inputs = padded_inputs(model, chosen) | scores.inputs()
        with scores.on():
            if editor is not None:
                tracing.forward(model, inputs, [editor], editor.modules)
            else:
                with torch.inference_mode():
                    model.hf(**inputs)
        return {index: with_scores(self.ended(index), scores, row) for row, index in enumerate(batch)}
