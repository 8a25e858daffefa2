"""Templates of a client's own task: Jinja, as lm-eval's doc_to_text and doc_to_target.

Templates run in Jinja's sandbox and in the caller's thread. Loops and the length of the text are limited; a
single expression that makes a huge value is not.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import count
from typing import Any

from jinja2 import StrictUndefined, Template, TemplateError, Undefined, UndefinedError, nodes, pass_context
from jinja2.meta import find_undeclared_variables
from jinja2.runtime import Context, TemplateReference
from jinja2.sandbox import ImmutableSandboxedEnvironment

from actograph.contract.base import MAX_PROMPT_CHARS
from actograph.contract.errors import InvalidDataset, InvalidRequest

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
