"""Evaluation jobs: a task's prompts, few-shot examples and scorers."""

from collections.abc import Mapping, Sequence

from actograph.contract.job_specs import EvaluationSpec
from actograph.contract.resources import Score, ToolMessage, ToolUse, ToolUseEnd
from actograph.contract.specs import SamplingSpec
from evals.dataset_rows import DatasetRow
from evals.prompts import ChatMessages, FewshotSampler, build_prompt, task_of
from evals.scoring.scorers import Answer, ScorerSet
from evals.tools import Called, tools_of
from evals.user_functions.functions import UserFunctions
from storage.queue.leases import LeasedSample
from worker.runners import text
from worker.runners.annotation_turns import AnnotationTurns
from worker.runners.runner import FurtherTurn, Prompt, Runner
from worker.runners.tool_turns import ToolTurns
from worker.text.chat_template import is_chat_prompt
from worker.text.tokenizer import Tokenizer


class EvaluationRunner(Runner):
    sampling: SamplingSpec

    def __init__(
        self,
        spec: EvaluationSpec,
        tokenizer: Tokenizer,
        fewshot_pool: Sequence[DatasetRow],
        *,
        tools: UserFunctions,
        scorers: UserFunctions,
    ) -> None:
        """
        Args:
            fewshot_pool: rows that examples are drawn from; empty without few-shot.
            tools: tools of the operator.
            scorers: scorers of the operator.

        Raises:
            InvalidRequest: a chat template is asked for and there is none, or too few examples, or a tool or
                scorer is unknown.
            FunctionFailed: a tool of the operator has no description.
        """
        self._spec = spec
        self._tokenizer = tokenizer
        self._task = task_of(spec)
        self._conditions = {condition.name: condition for condition in spec.conditions}
        self._is_chat = is_chat_prompt(tokenizer, spec.apply_chat_template)
        self._fewshot = FewshotSampler(
            self._task,
            fewshot_pool,
            0 if self._task.examples else spec.num_fewshot,
            same_dataset=spec.fewshot_dataset is None or spec.fewshot_dataset == spec.dataset,
        )
        self._scorers = ScorerSet.of(spec, scorers)
        stop = self._task.stop_strings(spec.sampling.stop)
        self.sampling = spec.sampling.model_copy(update={"stop": stop})
        self.takes_turns = spec.uses_tools
        #: names of tools -> turns with them
        self._turns: dict[tuple[str, ...], ToolTurns | AnnotationTurns] = {}
        for names in filter(None, map(spec.tools_of, spec.conditions)):
            if names not in self._turns:
                self._turns[names] = (
                    AnnotationTurns(spec, tokenizer)
                    if spec.tool_format == "annotations"
                    else ToolTurns(spec, tokenizer, tools_of(names, tools))
                )

    def sampling_of(self, sample: LeasedSample) -> SamplingSpec:
        changes = self._conditions[sample.condition].sampling
        return self.sampling if changes is None else changes.applied(self.sampling)

    def prompt(self, sample: LeasedSample) -> Prompt:
        turns, built = self._turns_of(sample), self._built(sample)
        if turns is not None:
            return turns.first(built)
        return text.encode_built(self._tokenizer, built, enable_thinking=self._spec.enable_thinking)

    def further_turn(
        self, sample: LeasedSample, turns: Sequence[Sequence[int]], called: Called
    ) -> FurtherTurn | ToolUseEnd:
        tools = self._turns_of(sample)
        return "answer" if tools is None else tools.further(self._built(sample), turns, called)

    def tools_of(
        self, sample: LeasedSample, turns: Sequence[Sequence[int]], called: Called, ended: ToolUseEnd
    ) -> tuple[ToolUse, Sequence[ToolMessage]] | None:
        tools = self._turns_of(sample)
        return None if tools is None else tools.record(turns, called, ended)

    def _turns_of(self, sample: LeasedSample) -> ToolTurns | AnnotationTurns | None:
        """The turns of a sample; None without tools."""
        return self._turns.get(self._spec.tools_of(self._conditions[sample.condition]))

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

    def score(self, sample: LeasedSample, completion: str, generated_tokens: int) -> Mapping[str, Score]:
        given = sample.input
        return self._scorers.score(Answer(completion, given["answer"], generated_tokens, given["question"]))
