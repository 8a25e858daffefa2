"""Evaluation jobs: a task's prompts, few-shot examples and scorers."""

from collections.abc import Mapping, Sequence

from transformers import PreTrainedTokenizerBase

from actograph.contract.resources import Score
from actograph.contract.specs import EvaluationSpec, SamplingSpec
from actograph.contract.tool_use import ToolMessage, ToolUse, ToolUseEnd
from actograph.dataset_rows import DatasetRow
from actograph.scoring.of_job import JobScoring
from storage.samples import LeasedSample
from worker.chat_template import is_chat_prompt, render_chat
from worker.engine.requests import Generation
from worker.evals.tasks import ChatMessages, FewshotSampler, build_prompt, task_of
from worker.runners import text
from worker.runners.runner import FurtherTurn, Prompt
from worker.runners.tool_turns import ToolTurns


class EvaluationRunner:
    layers_per_pass: int | None = None
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
        self._tools = ToolTurns(spec, tokenizer) if spec.uses_tools else None

    @property
    def takes_turns(self) -> bool:
        return self._tools is not None

    def sampling_of(self, sample: LeasedSample) -> SamplingSpec:
        changes = self._conditions[sample.condition].sampling
        return self.sampling if changes is None else changes.applied(self.sampling)

    def prompt(self, sample: LeasedSample) -> Prompt:
        built = self._built(sample)
        if isinstance(built, str):
            return text.encode(self._tokenizer, built, is_chat=False)
        tools = self._tools_of(sample)
        if tools is not None:
            return tools.first(built)
        rendered = render_chat(self._tokenizer, built, enable_thinking=self._spec.enable_thinking)
        return text.encode(self._tokenizer, rendered, is_chat=True)

    def further_turn(self, sample: LeasedSample, turns: Sequence[Sequence[int]]) -> FurtherTurn | ToolUseEnd:
        tools = self._tools_of(sample)
        return "answer" if tools is None else tools.further(self._built(sample), turns)

    def tools_of(
        self, sample: LeasedSample, turns: Sequence[Sequence[int]], ended: ToolUseEnd
    ) -> tuple[ToolUse, Sequence[ToolMessage]] | None:
        tools = self._tools_of(sample)
        return None if tools is None else tools.record(turns, ended)

    def _tools_of(self, sample: LeasedSample) -> ToolTurns | None:
        """None where the sample's condition has no tools."""
        condition = self._conditions[sample.condition]
        return self._tools if self._spec.mode_of(condition) == "with_tools" else None

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
