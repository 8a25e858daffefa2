"""What a template of a client's own does for one row, counted: steps of loops, and sizes of what is made.

A template is short and may still ask for terabytes: two loops over a long list, a long text between the
items of another one. The tree of a parsed template is rewritten so that whatever makes or walks through
something goes by a meter, which ends the rendering when it has counted too much.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from jinja2 import nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.filters import make_attrgetter
from jinja2.runtime import Context
from jinja2.visitor import NodeTransformer

from actograph.contract.specs import MAX_PROMPT_CHARS

#: units that one row may take; a character is one
MAX_WORK = 8 * MAX_PROMPT_CHARS
#: of a loop's step, and of an item of a list
STEP_WORK = 16
ITEM_WORK = 8

# no name of a column can be written like this in a template
_KEY = "\0meter"
_METERED, _STEPPED, _CONCAT = "\0metered", "\0stepped", "\0concat"


class _Meter:
    def __init__(self) -> None:
        self._left = MAX_WORK

    def count(self, work: int) -> None:
        """Raises SecurityError where it is too much."""
        self._left -= work
        if self._left < 0:
            raise SecurityError("takes too much work for this row: loops, texts and lists are too long")

    def weigh(self, value: Any) -> Any:
        """The value, once it has been counted."""
        if isinstance(value, str):
            self.count(len(value))
        elif isinstance(value, list | tuple):
            self.count(ITEM_WORK * len(value))
            self.count(sum(len(item) for item in value if isinstance(item, str)))
        elif isinstance(value, Mapping):
            self.count(ITEM_WORK * len(value))
        return value


def new_meter() -> dict[str, Any]:
    """What a rendering's context needs."""
    return {_KEY: _Meter()}


def metered(tree: nodes.Template) -> nodes.Template:
    """The tree with meters in it; it is changed in place."""
    rewritten = _Metering().visit(tree)
    assert isinstance(rewritten, nodes.Template)
    return rewritten


def bound_replace(text: str, old: str, new: str) -> None:
    """Raises SecurityError where a replacement makes a text that is too long."""
    if text.count(old) * max(0, len(new) - len(old)) + len(text) > MAX_PROMPT_CHARS:
        raise SecurityError(f"replace makes a text longer than {MAX_PROMPT_CHARS} characters")


def _by(name: str, node: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno, environment=node.environment)


class _Metering(NodeTransformer):
    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 (jinja's name)
        self.generic_visit(node)
        assert isinstance(node.iter, nodes.Expr)
        node.iter = _by(_STEPPED, node.iter)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        parts = nodes.List(node.nodes, lineno=node.lineno, environment=node.environment)
        return _by(_CONCAT, parts)

    def _made(self, node: nodes.Expr) -> nodes.Node:
        self.generic_visit(node)
        return _by(_METERED, node)

    visit_Filter = visit_Call = visit_Add = _made  # noqa: N815

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return _by(_METERED, node) if isinstance(node.arg, nodes.Slice) else node

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        node.expr = _by(_METERED, node.expr)
        for operand in node.ops:
            operand.expr = _by(_METERED, operand.expr)
        return node

    def visit_Test(self, node: nodes.Test) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        # whether something is there is asked of what may not be
        if node.args:
            node.node = _by(_METERED, node.node)
            node.args = [_by(_METERED, argument) for argument in node.args]
        return node


def _meter(context: Context) -> _Meter:
    found = context.get(_KEY)
    assert isinstance(found, _Meter)
    return found


@pass_context
def _weigh(context: Context, value: Any) -> Any:
    return _meter(context).weigh(value)


@pass_context
def _step(context: Context, value: Iterable[Any]) -> Iterator[Any]:
    meter = _meter(context)
    for item in value:
        meter.count(STEP_WORK)
        yield item


@pass_context
def _concat(context: Context, parts: list[Any]) -> str:
    meter, texts = _meter(context), []
    for part in parts:
        texts.append(meter.weigh(str(part)))
    return "".join(texts)


@pass_context
def _join(context: Context, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
    """Jinja's own, but that nothing is made which is too long."""
    meter, between = _meter(context), str(d)
    get = make_attrgetter(context.environment, attribute) if attribute is not None else None
    texts: list[str] = []
    for item in value:
        meter.count(STEP_WORK + len(between))
        texts.append(meter.weigh(str(item if get is None else get(item))))
    return between.join(texts)


def _replace(text: Any, old: str, new: str, count: int | None = None) -> str:
    bound_replace(str(text), old, new)
    return str(text).replace(old, new, -1 if count is None else count)


#: those of the rewritten tree, and those in place of Jinja's
METERED_FILTERS = {
    _METERED: _weigh,
    _STEPPED: _step,
    _CONCAT: _concat,
    "join": _join,
    "replace": _replace,
}
