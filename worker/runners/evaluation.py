"""Evaluation jobs: a task's prompts, few-shot examples and scorers."""

from collections.abc import Mapping, Sequence

from transformers import PreTrainedTokenizerBase

from actograph.contract.resources import Score
from actograph.contract.specs import EvaluationSpec, SamplingSpec
from actograph.dataset_rows import DatasetRow
from actograph.scoring.of_job import JobScoring
from storage.samples import LeasedSample
from worker.chat_template import is_chat_prompt, render_chat
from worker.evals.tasks import FewshotSampler, build_prompt, task_of
from worker.runners import text
from worker.runners.runner import Prompt


class EvaluationRunner:
    layers_per_pass: int | None = None

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

    def prompt(self, sample: LeasedSample) -> Prompt:
        row = DatasetRow.from_input(sample.sample_index, sample.input)
        examples = self._task.examples[: self._spec.num_fewshot] or self._fewshot.choose(row)
        built = build_prompt(
            self._task,
            row,
            self._conditions[sample.condition],
            fewshot=examples,
            is_chat=self._is_chat,
            fewshot_as_multiturn=self._spec.fewshot_as_multiturn,
        )
        if isinstance(built, str):
            return text.encode(self._tokenizer, built, is_chat=False)
        rendered = render_chat(self._tokenizer, built, enable_thinking=self._spec.enable_thinking)
        return text.encode(self._tokenizer, rendered, is_chat=True)

    def completion(self, token_ids: tuple[int, ...]) -> str:
        return text.decode(self._tokenizer, token_ids, self.sampling.stop)

    def score(self, sample: LeasedSample, completion: str, generated_tokens: int) -> Mapping[str, Score]:
        return self._scoring.score(sample.input, completion, generated_tokens)
