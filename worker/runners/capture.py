"""Jobs over prompts and conversations: captures generate from them or only read them, extractions read."""

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from actograph.contract.resources import Score
from actograph.contract.resources.tool_use import ToolUseEnd
from actograph.contract.specs import CaptureInput, SamplingSpec
from storage.samples import LeasedSample
from worker.engine.requests import Generation
from worker.runners import text
from worker.runners.runner import Prompt
from worker.text.chat_template import render_chat


class CaptureRunner:
    """One prompt or conversation to each sample; nothing is scored."""

    may_score = False

    def __init__(
        self, spec: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase, context_length: int
    ) -> None:
        """`spec` is the stored job spec; its inputs are the samples."""
        is_prefill = (spec["capture"] or {}).get("mode") == "prefill"
        self.sampling = None if is_prefill else SamplingSpec.model_validate(spec["sampling"])
        self._enable_thinking = bool(spec["enable_thinking"])
        self._most_tokens = context_length if spec.get("truncate") else None
        self._tokenizer = tokenizer

    def prompt(self, sample: LeasedSample) -> Prompt:
        given = CaptureInput.model_validate(sample.input)
        if given.prompt is not None:
            return text.encode(self._tokenizer, given.prompt, is_chat=False, most_tokens=self._most_tokens)
        messages = [message.model_dump() for message in given.messages or []]
        rendered = render_chat(
            self._tokenizer,
            messages,
            enable_thinking=self._enable_thinking,
            # an answer that is there already is read; else the text is what a generation would begin with
            add_generation_prompt=self.sampling is not None or messages[-1]["role"] != "assistant",
        )
        return text.encode(self._tokenizer, rendered, is_chat=True, most_tokens=self._most_tokens)

    @property
    def takes_turns(self) -> bool:
        return False

    def sampling_of(self, sample: LeasedSample) -> SamplingSpec | None:
        return self.sampling

    def further_turn(self, sample: LeasedSample, turns: Sequence[Sequence[int]]) -> ToolUseEnd:
        return "answer"

    def tools_of(self, sample: LeasedSample, turns: Sequence[Sequence[int]], ended: ToolUseEnd) -> None:
        return None

    def completion(self, sample: LeasedSample, token_ids: tuple[int, ...]) -> str:
        return text.decode(self._tokenizer, token_ids, self.sampling.stop if self.sampling else ())

    def live_text(self, token_ids: Sequence[int]) -> str:
        return text.decode(self._tokenizer, token_ids, ())

    def logprobs(self, sample: LeasedSample, generation: Generation) -> None:
        return None

    def score(self, sample: LeasedSample, completion: str, generated_tokens: int) -> Mapping[str, Score]:
        return {}
