"""Templates of a client's own: Jinja, as lm-eval's doc_to_text and doc_to_target are, with no way out.

A template runs in the API and in the worker, so its syntax is limited to what cannot reach anything but the
row: output, `if`, one `for` inside another at most, comparisons, tests, indexing, the listed filters and
string methods. Jinja's sandbox stands behind that. So that it cannot run long or grow large either, every
step of a loop and everything that is made is counted (`template_meter`).
"""

from collections.abc import Mapping
from typing import Any

from jinja2 import StrictUndefined, TemplateError, Undefined, nodes
from jinja2.exceptions import SecurityError, UndefinedError
from jinja2.meta import find_undeclared_variables
from jinja2.runtime import TemplateReference
from jinja2.sandbox import ImmutableSandboxedEnvironment

from actograph.contract.errors import InvalidDataset, InvalidRequest
from actograph.contract.specs import MAX_PROMPT_CHARS
from actograph.tasks.template_meter import METERED_FILTERS, bound_replace, metered, new_meter

_MAX_LOOPS = 2
_MAX_DEPTH = 64
#: a template is compiled when a job is submitted and when it is run
_MAX_NODES = 5000
_FILTERS = {
    "capitalize", "default", "first", "float", "int", "join", "last", "length", "list", "lower",
    "replace", "round", "string", "title", "tojson", "trim", "upper",
}  # fmt: skip
_METHODS = {
    "capitalize", "endswith", "get", "items", "keys", "lower", "lstrip", "partition", "removeprefix",
    "removesuffix", "replace", "rpartition", "rsplit", "rstrip", "split", "splitlines", "startswith",
    "strip", "title", "upper", "values",
}  # fmt: skip
_NODES = (
    nodes.Template, nodes.Output, nodes.TemplateData, nodes.Name, nodes.Const, nodes.Getattr, nodes.Getitem,
    nodes.Slice, nodes.Filter, nodes.Test, nodes.CondExpr, nodes.If, nodes.For, nodes.Compare, nodes.Operand,
    nodes.And, nodes.Or, nodes.Not, nodes.Neg, nodes.Add, nodes.Sub, nodes.Concat, nodes.Call, nodes.List,
    nodes.Tuple, nodes.Keyword,
)  # fmt: skip


class _Environment(ImmutableSandboxedEnvironment):
    """No globals such as `range`; every text that a call makes is bounded."""

    def call(self, context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        owner = getattr(obj, "__self__", None)
        if getattr(obj, "__name__", "") == "replace" and isinstance(owner, str) and len(args) > 1:
            bound_replace(owner, str(args[0]), str(args[1]))
        return super().call(context, obj, *args, **kwargs)


def _shown(value: Any) -> Any:
    """Refuse what has no text of its own: `{{question.upper}}` would print where a method lies in memory."""
    if isinstance(value, TemplateReference) or (callable(value) and not isinstance(value, Undefined)):
        name = getattr(value, "__name__", type(value).__name__)
        raise TypeError(f"{name} is no value; a method is called with brackets, such as question.upper()")
    return value


_ENVIRONMENT = _Environment(
    undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False, finalize=_shown
)
_ENVIRONMENT.globals.clear()
_ENVIRONMENT.filters.update(METERED_FILTERS)


class RowTemplate:
    """A template over the columns of a row; the bare name of a column stands for its value."""

    def __init__(self, source: str, *, param: str) -> None:
        """`param` is where the template stands in the job, for messages.

        Raises:
            InvalidRequest: it cannot be parsed, or does what templates may not.
        """
        self._param = param
        if source.isidentifier():
            source = "{{" + source + "}}"
        try:
            tree = _ENVIRONMENT.parse(source)
            if sum(1 for _ in tree.find_all(nodes.Node)) > _MAX_NODES:
                raise self._refusal(f"it has more than {_MAX_NODES} parts")
            self._check(tree, loops=0, depth=0)
            self.columns = frozenset(find_undeclared_variables(tree))
            code = _ENVIRONMENT.compile(metered(tree))
        except TemplateError as error:
            raise InvalidRequest(f"not a Jinja template: {error}", param=param) from None
        except (RecursionError, SyntaxError):
            raise InvalidRequest("the template is nested too deeply", param=param) from None
        self._template = _ENVIRONMENT.template_class.from_code(_ENVIRONMENT, code, {})

    def _check(self, node: nodes.Node, *, loops: int, depth: int) -> None:
        if depth > _MAX_DEPTH:
            raise self._refusal(f"nested more than {_MAX_DEPTH} deep")
        if not isinstance(node, _NODES):
            raise self._refusal(f"{type(node).__name__.lower()} is not allowed")
        if isinstance(node, nodes.For):
            loops += 1
            if loops > _MAX_LOOPS or node.recursive:
                raise self._refusal(f"more than {_MAX_LOOPS} loops in each other are not allowed")
        if isinstance(node, nodes.Filter) and node.name not in _FILTERS:
            raise self._refusal(f"no filter {node.name}; there are {', '.join(sorted(_FILTERS))}")
        if isinstance(node, nodes.Filter) and node.name == "tojson" and (node.args or node.kwargs):
            raise self._refusal("tojson takes no arguments")
        if isinstance(node, nodes.Getattr) and node.attr.startswith("_"):
            raise self._refusal(f"no attribute {node.attr}")
        if isinstance(node, nodes.Call) and not (
            isinstance(node.node, nodes.Getattr) and node.node.attr in _METHODS
        ):
            raise self._refusal(f"only these methods may be called: {', '.join(sorted(_METHODS))}")
        for child in node.iter_child_nodes():
            self._check(child, loops=loops, depth=depth + 1)

    def _refusal(self, reason: str) -> InvalidRequest:
        return InvalidRequest(f"the template is refused: {reason}", param=self._param)

    def render(self, columns: Mapping[str, Any]) -> str:
        """The text for one row.

        Raises:
            InvalidDataset: the row lacks a column, or the template fails on it.
        """
        try:
            return self._text(columns)
        except UndefinedError as error:
            known = ", ".join(map(str, columns)) or "none"
            raise InvalidDataset(
                f"{self._param.rpartition('.')[2]}: {error.message}; the row's columns are {known}"
            ) from None
        except SecurityError as error:
            raise InvalidDataset(f"{self._param.rpartition('.')[2]}: {error.message}") from None
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
            raise InvalidDataset(f"{self._param.rpartition('.')[2]} fails on this row: {error}") from None

    def _text(self, columns: Mapping[str, Any]) -> str:
        context = self._template.new_context({**columns, **new_meter()})
        pieces, size = [], 0
        for piece in self._template.root_render_func(context):
            pieces.append(piece)
            size += len(piece)
            if size > MAX_PROMPT_CHARS:
                raise SecurityError(f"makes a text longer than {MAX_PROMPT_CHARS} characters")
        return "".join(pieces)
