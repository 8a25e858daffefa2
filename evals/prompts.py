"""Tasks: prompts from rows of a dataset.

A task is a prompt form, few-shot examples and scorers, as in Inspect (https://inspect.aisi.org.uk/tasks.html).
The prompts of the three GSM8K tasks, with their examples, are exactly those of lm-eval 0.4.13
(tasks/gsm8k/*.yaml, version 3). The examples of gsm8k_cot are those of Wei et al. 2022 (arXiv:2201.11903).
"""

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from actograph.contract.errors import InvalidRequest
from actograph.contract.job_specs import EvaluationSpec
from actograph.contract.specs import CaptureCondition, Condition
from actograph.contract.tasks import OWN_EXAMPLES, STOP_STRINGS, TaskSpec
from evals.dataset_rows import DatasetRow
from evals.task_rows import Task

FEWSHOT_SEED = 1234

ChatMessages = list[dict[str, str]]

_PROMPTS = {
    "gsm8k": "Question: {{question}}\nAnswer:",
    "gsm8k_cot": "Q: {{question}}\nA:",
    "gsm8k_cot_zeroshot": "Q: {{question}}\nA: Let's think step by step.",
}


def _built_in(name: str) -> Task:
    samples: list[dict[str, Any]] = []
    if name in OWN_EXAMPLES:
        lines = Path(__file__).with_name(f"{name}_examples.jsonl").read_text(encoding="utf-8").splitlines()
        samples = [json.loads(line) for line in lines]
    fields = {"name": name, "prompt": _PROMPTS[name], "stop": STOP_STRINGS[name]}
    return Task(TaskSpec.model_validate(fields | {"fewshot": {"samples": samples}}))


TASKS = {name: _built_in(name) for name in _PROMPTS}


def task_of(spec: EvaluationSpec) -> Task:
    """The task of a job; a task file must already be in the spec.

    Raises:
        InvalidRequest: a template or an example of the task is invalid.
    """
    if isinstance(spec.task, str):
        return TASKS[spec.task]
    if not isinstance(spec.task, TaskSpec):
        raise InvalidRequest("the job's task file was not read", param="task")
    return Task(spec.task)


def build_prompt(
    task: Task,
    row: DatasetRow,
    condition: Condition,
    *,
    fewshot: Sequence[DatasetRow],
    is_chat: bool,
    fewshot_as_multiturn: bool = True,
) -> str | ChatMessages:
    """The prompt for one row: text, or the messages of a chat if `is_chat`.

    The condition changes the tested question and the system message, never the examples. Its prefix and
    suffix are separated from the question by a space, unless the prefix ends with white space.

    Raises:
        InvalidRequest: the condition has a system message, but the prompt is plain text.
    """
    question = task.prompt(row, lambda text: vary(text, condition))
    if not is_chat:
        if condition.system is not None:
            raise InvalidRequest(
                f"condition {condition.name!r} has a system message, which needs a chat template; put the "
                "text into its prefix, or use a model with a chat template",
                param="conditions",
            )
        return _as_text(task, fewshot) + question
    messages: ChatMessages = []
    if condition.system is not None:
        messages.append({"role": "system", "content": condition.system})
    if fewshot_as_multiturn:
        for example in fewshot:
            messages.append({"role": "user", "content": task.prompt(example)})
            messages.append({"role": "assistant", "content": example.answer})
    else:
        question = _as_text(task, fewshot) + question
    messages.append({"role": "user", "content": question})
    return messages


def varied_messages(messages: Sequence[Mapping[str, str]], condition: CaptureCondition) -> ChatMessages:
    """A conversation under a condition.

    Its system message replaces that of the conversation; its prefix and suffix are around the last message of
    the user.

    Raises:
        InvalidRequest: there is a prefix or suffix, and no message of the user.
    """
    found = [dict(message) for message in messages]
    if condition.prefix or condition.suffix:
        asked = [place for place, message in enumerate(found) if message["role"] == "user"]
        if not asked:
            raise InvalidRequest(
                f"condition {condition.name!r} has a prefix or suffix, and the conversation no message of "
                "the user to put it around"
            )
        found[asked[-1]]["content"] = vary(found[asked[-1]]["content"], condition)
    if condition.system is None:
        return found
    own = found[1:] if found[0]["role"] == "system" else found
    return [{"role": "system", "content": condition.system}, *own]


def vary(question: str, condition: CaptureCondition) -> str:
    """A text with the prefix and suffix of a condition."""
    prefix, suffix = condition.prefix, condition.suffix
    if prefix and not prefix[-1].isspace():
        prefix += " "
    return prefix + question + (f" {suffix}" if suffix else "")


def _as_text(task: Task, examples: Sequence[DatasetRow]) -> str:
    return "".join(
        task.prompt(example) + task.spec.target_delimiter + example.answer + task.spec.fewshot_delimiter
        for example in examples
    )


class FewshotSampler:
    """Chooses the few-shot examples of each row, independent of the order of rows.

    lm-eval draws from one `random.Random(1234)`, row after row. The sampler repeats these draws up to the
    requested row. So row i gets exactly lm-eval's examples on every worker, for any `limit` and `offset`.
    """

    def __init__(self, task: Task, examples: Sequence[DatasetRow], count: int, *, same_dataset: bool) -> None:
        """`same_dataset`: examples come from the tested rows, so the tested row is left out.

        Raises:
            InvalidRequest: there are too few examples.
        """
        needed = count + 1 if same_dataset and count else count
        if needed > len(examples):
            raise InvalidRequest(
                f"num_fewshot {count} needs {needed} rows to choose from; there are {len(examples)}",
                param="num_fewshot",
            )
        self._task, self._examples, self._count, self._draw = task, examples, count, needed
        self._same_dataset = same_dataset
        self._random = random.Random(FEWSHOT_SEED)
        self._draws: list[list[int]] = []

    def choose(self, row: DatasetRow) -> list[DatasetRow]:
        """The examples for `row`, in the order of the prompt."""
        if not self._count:
            return []
        population = range(len(self._examples))
        while len(self._draws) <= row.index:
            self._draws.append(self._random.sample(population, self._draw))
        drawn = [self._examples[i] for i in self._draws[row.index]]
        if not self._same_dataset:
            return drawn
        shown = self._task.shown(row)
        kept = [example for example in drawn if self._task.shown(example) != shown][: self._count]
        if len(kept) == self._count:
            return kept
        # the dataset repeats this problem, and several copies were drawn
        others = [example for example in self._examples if self._task.shown(example) != shown]
        if len(others) < self._count:
            raise InvalidRequest(
                f"num_fewshot is {self._count}, but only {len(others)} rows differ from row {row.index}",
                param="num_fewshot",
            )
        return random.Random(f"{FEWSHOT_SEED}:{row.index}").sample(others, self._count)
