"""Capture jobs: prompts or conversations in, generations and sessions out."""

from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedTokenizerBase

from actograph.contract.resources import Score
from actograph.contract.specs import CaptureInput, SamplingSpec
from storage.samples import LeasedSample
from worker.chat_template import render_chat
from worker.runners import text
from worker.runners.runner import Prompt


class CaptureRunner:
    def __init__(self, spec: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase) -> None:
        """`spec` is the stored job spec; its inputs are the samples."""
        self.sampling = SamplingSpec.model_validate(spec["sampling"])
        self._enable_thinking = bool(spec["enable_thinking"])
        self._tokenizer = tokenizer

    def prompt(self, sample: LeasedSample) -> Prompt:
        given = CaptureInput.model_validate(sample.input)
        if given.prompt is not None:
            return text.encode(self._tokenizer, given.prompt, is_chat=False)
        messages = [message.model_dump() for message in given.messages or []]
        rendered = render_chat(self._tokenizer, messages, enable_thinking=self._enable_thinking)
        return text.encode(self._tokenizer, rendered, is_chat=True)

    def completion(self, token_ids: tuple[int, ...]) -> str:
        return text.decode(self._tokenizer, token_ids, self.sampling.stop)

    def score(self, sample: LeasedSample, completion: str, generated_tokens: int) -> Mapping[str, Score]:
        return {}
