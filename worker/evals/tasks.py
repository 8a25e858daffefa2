"""Tasks: how a row of a dataset becomes a prompt.

A task is a prompt form, few-shot examples and scorers, in the sense of Inspect
(https://inspect.aisi.org.uk/tasks.html). The gsm8k prompt is that of lm-eval 0.4.13
(tasks/gsm8k/gsm8k.yaml, version 3), to the character, few-shot examples included.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

from actograph.contract.errors import InvalidRequest
from actograph.contract.specs import Condition
from actograph.dataset_rows import DatasetRow

FEWSHOT_SEED = 1234
TARGET_DELIMITER = " "
FEWSHOT_DELIMITER = "\n\n"

ChatMessages = list[dict[str, str]]


@dataclass(frozen=True, kw_only=True)
class Task:
    """`stop` ends a plain completion, which would otherwise go on to invent the next question."""

    name: str
    question_form: str
    stop: tuple[str, ...]

    def question(self, text: str) -> str:
        return self.question_form.replace("{question}", text)

    def stop_strings(self, requested: Sequence[str], *, is_chat: bool) -> list[str]:
        """The job's own stop strings and, for a plain prompt, the task's."""
        return list(dict.fromkeys([*requested, *(() if is_chat else self.stop)]))


TASKS = {
    "gsm8k": Task(
        name="gsm8k",
        question_form="Question: {question}\nAnswer:",
        stop=("Question:", "</s>", "<|im_end|>"),
    )
}


def build_prompt(
    task: Task,
    row: DatasetRow,
    condition: Condition,
    *,
    fewshot: Sequence[DatasetRow],
    is_chat: bool,
    fewshot_as_multiturn: bool = True,
) -> str | ChatMessages:
    """The prompt for one row: text, or the messages of a chat where `is_chat`.

    The condition changes the tested question and the system message, never the examples:
    its prefix stands before the question (after it, a space where the prefix does not end in
    white space), its suffix after the question and one space.

    Raises:
        InvalidRequest: if the condition has a system message and the prompt is plain text.
    """
    question = task.question(_vary(row.question, condition))
    if not is_chat:
        if condition.system is not None:
            raise InvalidRequest(
                f"condition {condition.name!r} has a system message, which needs a chat template; "
                "put the text into its prefix, or use a model with a chat template",
                param="conditions",
            )
        return _as_text(task, fewshot) + question
    messages: ChatMessages = []
    if condition.system is not None:
        messages.append({"role": "system", "content": condition.system})
    if fewshot_as_multiturn:
        for example in fewshot:
            messages.append({"role": "user", "content": task.question(example.question)})
            messages.append({"role": "assistant", "content": example.answer})
    else:
        question = _as_text(task, fewshot) + question
    messages.append({"role": "user", "content": question})
    return messages


def _vary(question: str, condition: Condition) -> str:
    prefix, suffix = condition.prefix, condition.suffix
    if prefix and not prefix[-1].isspace():
        prefix += " "
    return prefix + question + (f" {suffix}" if suffix else "")


def _as_text(task: Task, examples: Sequence[DatasetRow]) -> str:
    return "".join(
        task.question(example.question) + TARGET_DELIMITER + example.answer + FEWSHOT_DELIMITER
        for example in examples
    )


class FewshotSampler:
    """Chooses the few-shot examples of every row, the same ones in any order of running.

    lm-eval draws from one `random.Random(1234)` as it goes through the rows; the draws are
    replayed here up to the row that is asked for, so row i gets exactly the examples that
    lm-eval gives it, whichever worker runs it, and whatever `limit` and `offset` are.
    """

    def __init__(self, examples: Sequence[DatasetRow], count: int, *, same_dataset: bool) -> None:
        """`same_dataset`: the examples are the tested rows, so the tested one is left out.

        Raises:
            InvalidRequest: if there are fewer examples than `count` asks for.
        """
        needed = count + 1 if same_dataset and count else count
        if needed > len(examples):
            raise InvalidRequest(
                f"num_fewshot {count} needs {needed} rows to choose from; there are {len(examples)}",
                param="num_fewshot",
            )
        self._examples = examples
        self._count = count
        self._same_dataset = same_dataset
        self._draw = needed
        self._random = random.Random(FEWSHOT_SEED)
        self._draws: list[list[int]] = []

    def choose(self, row: DatasetRow) -> list[DatasetRow]:
        """The examples for `row`, in the order in which they are shown."""
        if not self._count:
            return []
        population = range(len(self._examples))
        while len(self._draws) <= row.index:
            self._draws.append(self._random.sample(population, self._draw))
        drawn = [self._examples[i] for i in self._draws[row.index]]
        if not self._same_dataset:
            return drawn
        kept = [example for example in drawn if not _same_problem(example, row)][: self._count]
        if len(kept) == self._count:
            return kept
        # The dataset repeats this problem, and several copies of it were drawn.
        others = [example for example in self._examples if not _same_problem(example, row)]
        if len(others) < self._count:
            raise InvalidRequest(
                f"num_fewshot is {self._count}, but only {len(others)} rows differ from row {row.index}",
                param="num_fewshot",
            )
        return random.Random(f"{FEWSHOT_SEED}:{row.index}").sample(others, self._count)


def _same_problem(one: DatasetRow, other: DatasetRow) -> bool:
    return (one.question, one.answer) == (other.question, other.answer)
