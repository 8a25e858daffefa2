"""Evaluation jobs: a task's prompts, few-shot examples and scorers."""

from collections.abc import Mapping, Sequence

from transformers import PreTrainedTokenizerBase

from actograph.contract.resources import Score
from actograph.contract.resources.tool_use import ToolMessage, ToolUse, ToolUseEnd
from actograph.contract.specs import EvaluationSpec, SamplingSpec
from actograph.datasets.dataset_rows import DatasetRow
from actograph.scoring.of_job import JobScoring
from actograph.tasks.prompts import ChatMessages, FewshotSampler, build_prompt, task_of
from storage.samples import LeasedSample
from worker.engine.requests import Generation
from worker.evals.tools import TOOLS
from worker.runners import text
from worker.runners.annotation_turns import AnnotationTurns
from worker.runners.runner import FurtherTurn, Prompt
from worker.runners.tool_turns import ToolTurns
from worker.text.chat_template import is_chat_prompt, render_chat


class EvaluationRunner:
    may_score = False

    def __init__(
        self,
        spec: EvaluationSpec,
        tokenizer: PreTrainedTokenizerBase,
        fewshot_pool: Sequence[DatasetRow],
    ) -> None:
        """`fewshot_pool` holds the rows that examples are drawn from; empty without few-shot.

        Raises:
            InvalidRequest: a chat template is asked for and there is none, or too few examples.
        """
        self._spec = spec
        self._tokenizer = tokenizer
        self._task = task_of(spec)
        self._conditions = {condition.name: condition for condition in spec.conditions}
        self._is_chat = is_chat_prompt(tokenizer, spec.apply_chat_template)
        self._fewshot = FewshotSampler(
            fewshot_pool,
            0 if self._task.examples else spec.num_fewshot,
            same_dataset=spec.fewshot_dataset is None or spec.fewshot_dataset == spec.dataset,
        )
        self._scoring = JobScoring(spec)
        stop = self._task.stop_strings(spec.sampling.stop)
        self.sampling: SamplingSpec = spec.sampling.model_copy(update={"stop": stop})
        self._tools: ToolTurns | None = None
        self._annotations: AnnotationTurns | None = None
        if spec.uses_tools and spec.tool_format == "annotations":
            self._annotations = AnnotationTurns(spec, tokenizer, TOOLS)
        elif spec.uses_tools:
            self._tools = ToolTurns(spec, tokenizer)

    @property
    def takes_turns(self) -> bool:
        return self._spec.uses_tools

    def sampling_of(self, sample: LeasedSample) -> SamplingSpec:
        changes = self._conditions[sample.condition].sampling
        return self.sampling if changes is None else changes.applied(self.sampling)

    def prompt(self, sample: LeasedSample) -> Prompt:
        if self._tools is not None and self._has_tools(sample):
            return self._tools.first(self._messages(sample))
        prompt = self._plain(sample)
        if self._annotations is not None and self._has_tools(sample):
            return self._annotations.first(prompt)
        return prompt

    def further_turn(self, sample: LeasedSample, turns: Sequence[Sequence[int]]) -> FurtherTurn | ToolUseEnd:
        if not self._has_tools(sample):
            return "answer"
        if self._annotations is not None:
            return self._annotations.further(self._plain(sample), turns)
        return "answer" if self._tools is None else self._tools.further(self._messages(sample), turns)

    def tools_of(
        self, sample: LeasedSample, turns: Sequence[Sequence[int]], ended: ToolUseEnd
    ) -> tuple[ToolUse, Sequence[ToolMessage]] | None:
        used = self._annotations or self._tools
        return used.record(turns, ended) if used is not None and self._has_tools(sample) else None

    def _has_tools(self, sample: LeasedSample) -> bool:
        return self._spec.mode_of(self._conditions[sample.condition]) == "with_tools"

    def _plain(self, sample: LeasedSample) -> Prompt:
        """The prompt without tools."""
        built = self._built(sample)
        if isinstance(built, str):
            return text.encode(self._tokenizer, built, is_chat=False)
        rendered = render_chat(self._tokenizer, built, enable_thinking=self._spec.enable_thinking)
        return text.encode(self._tokenizer, rendered, is_chat=True)

    def _messages(self, sample: LeasedSample) -> ChatMessages:
        built = self._built(sample)
        assert not isinstance(built, str)  # tools of a chat template, so the prompt is a chat
        return built

    def _built(self, sample: LeasedSample) -> str | ChatMessages:
        """The task's prompt: plain text, or the messages of a chat."""
        row = DatasetRow.from_input(sample.sample_index, sample.input)
        examples = self._task.examples[: self._spec.num_fewshot] or self._fewshot.choose(row)
        return build_prompt(
            self._task,
            row,
            self._conditions[sample.condition],
            fewshot=examples,
            is_chat=self._is_chat,
            fewshot_as_multiturn=self._spec.fewshot_as_multiturn,
        )

    def completion(self, sample: LeasedSample, token_ids: tuple[int, ...]) -> str:
        return text.decode(self._tokenizer, token_ids, self.sampling.stop)

    def live_text(self, token_ids: Sequence[int]) -> str:
        return text.decode(self._tokenizer, token_ids, ())

    def logprobs(self, sample: LeasedSample, generation: Generation) -> None:
        return None

    def score(self, sample: LeasedSample, completion: str, generated_tokens: int) -> Mapping[str, Score]:
        return self._scoring.score(sample.input, completion, generated_tokens)
