"""Capture jobs: prompts and conversations, continued or only read."""

from collections.abc import Mapping
from typing import Any

from actograph.contract.job_specs import CaptureInput
from actograph.contract.specs import CaptureCondition, SamplingSpec
from evals.prompts import varied_messages, vary
from storage.queue.leases import LeasedSample
from worker.runners import text
from worker.runners.runner import Prompt, Runner
from worker.text.chat_template import render_chat
from worker.text.tokenizer import Tokenizer

_UNCHANGED = CaptureCondition(name="unchanged")


def _prompt_of(condition: Mapping[str, Any]) -> CaptureCondition:
    """The changes of a stored condition to the prompt."""
    names = ("name", "system", "prefix", "suffix")
    return CaptureCondition.model_validate({name: condition[name] for name in names if name in condition})


class CaptureRunner(Runner):
    """One prompt or conversation per sample; nothing is scored."""

    def __init__(self, spec: Mapping[str, Any], tokenizer: Tokenizer, context_length: int) -> None:
        """`spec` is the stored job spec; its inputs are the samples."""
        is_prefill = (spec["capture"] or {}).get("mode") == "prefill"
        self.sampling = None if is_prefill else SamplingSpec.model_validate(spec["sampling"])
        self._enable_thinking = bool(spec["enable_thinking"])
        self._most_tokens = context_length if spec.get("truncate") else None
        self._tokenizer = tokenizer
        self._conditions = {one["name"]: _prompt_of(one) for one in spec.get("conditions") or ()}

    def prompt(self, sample: LeasedSample) -> Prompt:
        given = CaptureInput.model_validate({k: v for k, v in sample.input.items() if k != "columns"})
        condition = self._conditions.get(sample.condition, _UNCHANGED)
        if given.prompt is not None:
            prompt = vary(given.prompt, condition)
            return text.encode(self._tokenizer, prompt, is_chat=False, most_tokens=self._most_tokens)
        messages = varied_messages([message.model_dump() for message in given.messages or []], condition)
        rendered = render_chat(
            self._tokenizer,
            messages,
            enable_thinking=self._enable_thinking,
            # an existing answer is read; without one the text ends where a generation would begin
            add_generation_prompt=self.sampling is not None or messages[-1]["role"] != "assistant",
        )
        return text.encode(self._tokenizer, rendered, is_chat=True, most_tokens=self._most_tokens)

    def completion(self, sample: LeasedSample, token_ids: tuple[int, ...]) -> str:
        return text.decode(self._tokenizer, token_ids, self.sampling.stop if self.sampling else ())
