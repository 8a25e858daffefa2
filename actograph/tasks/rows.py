"""Rows of a client's own task: the columns that its templates use, and the rendered target."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from actograph.contract.errors import InvalidDataset
from actograph.contract.tasks import TaskSpec
from actograph.datasets.dataset_rows import DatasetRow, text_fault
from actograph.tasks.templates import RowTemplate

MAX_DEPTH = 64


class RowForm:
    """Turns records of any columns into rows of a task. Called with the row's number and the record."""

    def __init__(self, task: TaskSpec) -> None:
        """Raises InvalidRequest for a template that is none."""
        self._task = task
        self._prompt = RowTemplate(task.prompt, param="task.prompt")
        self._target = RowTemplate(task.target, param="task.target")
        #: what a sample must keep of its row
        self._kept = self._prompt.columns
        self.columns = frozenset(self._prompt.columns) | frozenset(self._target.columns)

    def __call__(self, index: int, record: Mapping[str, Any]) -> DatasetRow:
        """Raises InvalidDataset, saying what is wrong with the record."""
        columns = {str(name): record[name] for name in self._kept if name in record}
        if not all(is_shallow(value) for value in columns.values()):
            raise InvalidDataset(f"a column that the prompt uses is nested more than {MAX_DEPTH} deep")
        try:
            columns = json.loads(json.dumps(columns, allow_nan=False))
        except (TypeError, ValueError):
            raise InvalidDataset("a column that the prompt uses holds something else than JSON") from None
        answer = self._target.render(record)
        for name, text in (("prompt", self._prompt.render(record)), ("target", answer)):
            if (fault := text_fault(text)) is not None:
                raise InvalidDataset(f"the {name} {fault}")
        question = columns.pop(self._task.question, "")
        return DatasetRow(index=index, question=str(question), answer=answer, columns=columns)

    def prompt(self, row: DatasetRow, vary: Callable[[str], str] = str) -> str:
        """Prompt of a row; `vary` changes the question, or the whole prompt without one.

        Raises:
            InvalidDataset: the template fails on the row.
        """
        if self._task.question not in self._kept:
            return vary(self._prompt.render(row.columns))
        return self._prompt.render({**row.columns, self._task.question: vary(row.question)})


def is_shallow(value: Any, depth: int = MAX_DEPTH) -> bool:
    """Whether lists and mappings lie no deeper in each other than everybody who reads them can follow."""
    if not isinstance(value, Mapping | list | tuple):
        return True
    inner = value.values() if isinstance(value, Mapping) else value
    return depth > 0 and all(is_shallow(item, depth - 1) for item in inner)


def examples_of(task: TaskSpec) -> list[DatasetRow]:
    """The examples that a task brings along.

    Raises:
        InvalidDataset: one lacks a column, or the templates fail on it.
    """
    form = RowForm(task)
    examples = []
    for index, sample in enumerate(task.fewshot.samples):
        try:
            examples.append(form(index, sample))
        except InvalidDataset as error:
            raise InvalidDataset(
                f"example {index}: {error.message}", param=f"task.fewshot.samples.{index}"
            ) from None
    return examples


def row_form(task: object) -> RowForm | None:
    """How rows are read: None for the tasks that come with Actograph, whose rows are GSM8K's."""
    return RowForm(task) if isinstance(task, TaskSpec) else None
