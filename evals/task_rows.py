"""Rows of a client's own task: Jinja templates, as lm-eval's doc_to_text and doc_to_target.

Templates run in Jinja's sandbox and in the caller's thread. Loops and the length of the text are limited; a
single expression that makes a huge value is not.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import count
from typing import Any

from jinja2 import StrictUndefined, Template, TemplateError, Undefined, UndefinedError, nodes, pass_context
from jinja2.meta import find_undeclared_variables
from jinja2.runtime import Context, TemplateReference
from jinja2.sandbox import ImmutableSandboxedEnvironment

from actograph.contract.base import MAX_PROMPT_CHARS
from actograph.contract.errors import InvalidDataset, InvalidRequest
from actograph.contract.tasks import TaskSpec
from evals.dataset_rows import DatasetRow, Problems, RowForm, short_values, text_fault

#: steps of all loops of one rendering
MAX_STEPS = 100_000
#: the name of the counter of steps; no template can use it
_STEPS = "loop steps"


def _printable(value: Any) -> Any:
    """Refuse objects without a text: `{{question.upper}}` would print the method's address."""
    has_text = isinstance(value, Undefined) or not (callable(value) or isinstance(value, Iterator))
    if not has_text or isinstance(value, TemplateReference):
        name = getattr(value, "__name__", type(value).__name__)
        raise TypeError(f"{name} is not a value; call a method with brackets, such as question.upper()")
    return value


@pass_context
def _counted(context: Context, values: Iterable[Any]) -> Iterator[Any]:
    """The values of a loop, up to the limit of steps."""
    steps = context.parent[_STEPS]
    for value in values:
        if next(steps) >= MAX_STEPS:
            raise ValueError(f"its loops take more than {MAX_STEPS} steps")
        yield value


_ENVIRONMENT = ImmutableSandboxedEnvironment(
    undefined=StrictUndefined, keep_trailing_newline=True, finalize=_printable
)
_ENVIRONMENT.globals.clear()
del _ENVIRONMENT.filters["random"]  # a prompt must be the same in the API and in the worker
_ENVIRONMENT.filters[_STEPS] = _counted


@lru_cache(maxsize=64)
def _compiled(source: str) -> tuple[Template, frozenset[str]]:
    """The template, and the columns that it uses."""
    tree = _ENVIRONMENT.parse(source)
    columns = frozenset(find_undeclared_variables(tree))
    for loop in tree.find_all(nodes.For):
        loop.iter = nodes.Filter(loop.iter, _STEPS, [], [], None, None, lineno=loop.lineno)
    return _ENVIRONMENT.from_string(tree), columns


def _as_json(name: str, value: Any) -> Any:
    """A column's value as its sample stores it. Raises InvalidDataset."""
    try:
        return json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        kind = type(value).__name__
        raise InvalidDataset(
            f"column {name} has a {kind} that JSON lacks ({str(value)[:40]}); write it as a text or a number"
        ) from None


class RowTemplate:
    """A template over the columns of a row; the bare name of a column stands for its value."""

    def __init__(self, source: str, *, param: str) -> None:
        """`param`: field of the job that holds the template, for messages.

        Raises:
            InvalidRequest: the source is not a Jinja template.
        """
        self._name = param.rpartition(".")[2]
        try:
            self._template, self.columns = _compiled(
                "{{" + source + "}}" if source.isidentifier() else source
            )
        except (TemplateError, RecursionError, SyntaxError, MemoryError) as error:
            reason = str(error) or "too deeply nested"
            raise InvalidRequest(f"not a Jinja template: {reason}", param=param) from None

    def render(self, columns: Mapping[str, Any]) -> str:
        """The text for one row. Raises InvalidDataset if the template fails on it."""
        used = {name: columns[name] for name in self.columns if name in columns}
        text = ""
        try:
            for piece in self._template.generate(used, **{_STEPS: count()}):
                text += piece
                if len(text) > MAX_PROMPT_CHARS:
                    raise ValueError(f"makes a text longer than {MAX_PROMPT_CHARS} characters")
        except UndefinedError as error:
            known = ", ".join(map(str, columns)) or "none"
            raise InvalidDataset(f"{self._name}: {error}; the row's columns are {known}") from None
        except Exception as error:  # noqa: BLE001 (whatever the template raised)
            reason = str(error)[:1000] or "too deeply nested"
            raise InvalidDataset(f"{self._name} fails on this row: {reason}") from None
        return text


class Task(RowForm):
    """A task: rows from records with any columns, their prompts, and examples of its own."""

    def __init__(self, spec: TaskSpec) -> None:
        """Raises InvalidRequest for an invalid template, InvalidDataset for an example that does not fit."""
        self.spec = spec
        self._prompt = RowTemplate(spec.prompt, param="task.prompt")
        self._target = RowTemplate(spec.target, param="task.target")
        self.prompt_columns = self._prompt.columns
        self.columns = self._prompt.columns | self._target.columns
        #: used instead of rows of a dataset
        self.examples = [self._example(index, sample) for index, sample in enumerate(spec.fewshot.samples)]

    def __call__(self, index: int, record: Mapping[str, Any], /) -> DatasetRow:
        columns = {
            str(name): _as_json(str(name), record[name])
            for name in sorted(self.prompt_columns)
            if name in record
        }
        answer = self._target.render(record)
        for name, text in (("prompt", self._prompt.render(record)), ("target", answer)):
            if (fault := text_fault(text)) is not None:
                raise InvalidDataset(f"the {name} {fault}")
        question = columns.pop(self.spec.question, "")
        columns |= short_values(record, self.prompt_columns)
        return DatasetRow(index=index, question=str(question), answer=answer, columns=columns)

    def prompt(self, row: DatasetRow, vary: Callable[[str], str] = str) -> str:
        """The prompt; `vary` changes the question, or the whole prompt if it has no question.

        Raises:
            InvalidDataset: the template fails on the row.
        """
        if self.spec.question not in self.prompt_columns:
            return vary(self._prompt.render(row.columns))
        return self._prompt.render({**row.columns, self.spec.question: vary(row.question)})

    def shown(self, row: DatasetRow) -> tuple[object, ...]:
        """The part of a row that a prompt shows; rows with equal parts are one problem."""
        columns = {name: value for name, value in row.columns.items() if name in self.prompt_columns}
        return row.question, row.answer, columns

    def stop_strings(self, requested: Sequence[str]) -> list[str]:
        """Stop strings of the job and the task, also for chats, as in lm-eval.

        Without those of the task, models often continue with another question.
        """
        return list(dict.fromkeys([*requested, *self.spec.stop]))

    def _example(self, index: int, sample: Mapping[str, Any]) -> DatasetRow:
        try:
            return self(index, sample)
        except InvalidDataset as error:
            param = f"task.fewshot.samples.{index}"
            raise InvalidDataset(f"example {index}: {error.message}", param=param) from None


def row_form(task: object) -> RowForm:
    """The form of a task's rows: GSM8K's for built-in tasks."""
    return Task(task) if isinstance(task, TaskSpec) else Problems()
