"""Rows of a client's own task: columns for the prompt, and the rendered target."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from actograph.contract.errors import InvalidDataset
from actograph.contract.tasks import TaskSpec
from actograph.datasets import dataset_rows
from actograph.datasets.dataset_rows import DatasetRow, Problems, text_fault
from actograph.tasks.templates import RowTemplate

#: of lists and mappings in a column
MAX_DEPTH = 64


class RowForm:
    """Turns records with any columns into rows of a task."""

    required = ()

    def __init__(self, task: TaskSpec) -> None:
        """Raises InvalidRequest if a template is invalid."""
        self._task = task
        self._prompt = RowTemplate(task.prompt, param="task.prompt")
        self._target = RowTemplate(task.target, param="task.target")
        #: columns that a sample must store
        self._kept = self._prompt.columns
        self.columns = frozenset(self._prompt.columns) | frozenset(self._target.columns)

    def __call__(self, index: int, record: Mapping[str, Any]) -> DatasetRow:
        """Raises InvalidDataset if the record does not fit the task."""
        columns = {str(name): record[name] for name in self._kept if name in record}
        if not all(is_shallow(value) for value in columns.values()):
            raise InvalidDataset(f"a column of the prompt is nested more than {MAX_DEPTH} deep")
        try:
            columns = json.loads(json.dumps(columns, allow_nan=False))
        except (TypeError, ValueError):
            raise InvalidDataset("a column of the prompt has a value that JSON lacks") from None
        answer = self._target.render(record)
        for name, text in (("prompt", self._prompt.render(record)), ("target", answer)):
            if (fault := text_fault(text)) is not None:
                raise InvalidDataset(f"the {name} {fault}")
        question = columns.pop(self._task.question, "")
        return DatasetRow(index=index, question=str(question), answer=answer, columns=columns)

    def prompt(self, row: DatasetRow, vary: Callable[[str], str] = str) -> str:
        """The prompt; `vary` changes the question, or the whole prompt if it has no question.

        Raises:
            InvalidDataset: the template fails on the row.
        """
        if self._task.question not in self._kept:
            return vary(self._prompt.render(row.columns))
        return self._prompt.render({**row.columns, self._task.question: vary(row.question)})


def is_shallow(value: Any, depth: int = MAX_DEPTH) -> bool:
    """True if lists and mappings are nested at most `depth` deep."""
    if not isinstance(value, Mapping | list | tuple):
        return True
    inner = value.values() if isinstance(value, Mapping) else value
    return depth > 0 and all(is_shallow(item, depth - 1) for item in inner)


def examples_of(task: TaskSpec) -> list[DatasetRow]:
    """The task's own examples.

    Raises:
        InvalidDataset: an example lacks a column, or the templates fail on it.
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


def row_form(task: object) -> dataset_rows.RowForm[DatasetRow]:
    """The form of a task's rows: GSM8K's for built-in tasks."""
    return RowForm(task) if isinstance(task, TaskSpec) else Problems()
