"""The page of the Python client, from its docstrings and signatures."""

import inspect
import re
from collections.abc import Iterator
from typing import Any

from actograph.client import errors
from actograph.client.client import Client
from actograph.client.jobs import JobHandle
from actograph.client.matrix import Matrix
from actograph.client.patching import Patching
from actograph.client.sessions import SessionHandle
from actograph.client.tensors import LazyTensor
from docs.generate.markdown import code, escape, heading

INTRODUCTION = """\
`from actograph import Client`. [The Python client](../guides/client.md) is the guide."""
_SECTION = re.compile(r"^(Args|Raises[^:\n]*|Returns|Yields):$")


def signature(call: Any) -> str:
    """Parameters of a call without `self`, with defaults but without types that fill a line."""
    found = inspect.signature(call)
    parameters = [p.replace(annotation=p.empty) for name, p in found.parameters.items() if name != "self"]
    return str(found.replace(parameters=parameters, return_annotation=found.empty))


def returned(call: Any) -> str:
    """The type that a call returns, without module paths."""
    annotation = inspect.signature(call).return_annotation
    if annotation is inspect.Signature.empty:
        return ""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"\b(?:[a-z_]\w*\.)+(?=\w)", "", text).strip("'\"")


def prose(documentation: str | None) -> str:
    """A docstring as Markdown: sections of arguments and errors become lists."""
    lines: list[str] = []
    in_section = False
    for line in inspect.cleandoc(documentation or "").splitlines():
        if found := _SECTION.match(line.strip()):
            in_section = True
            lines += ["", f"{found[1]}:", ""]
        elif in_section and re.match(r"^    \S", line):
            name, _, rest = line.strip().partition(":")
            lines.append(f"* {code(name)}: {escape(rest.strip())}" if rest else f"* {escape(name)}")
        elif in_section and line.startswith("     "):
            lines.append(f"  {escape(line.strip())}")
        else:
            in_section = in_section and not line.strip()
            lines.append(escape(line))
    return "\n".join(lines).strip() + "\n\n"


def calls_of(kind: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties with a docstring, in the order of their definition."""
    known: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("actograph.client"):
            known |= vars(base)
    for name, value in known.items():
        own = name == "__call__" or not name.startswith(("_", "model_"))  # `model_...` is pydantic's
        if own and (inspect.isfunction(value) or isinstance(value, property)):
            yield name, value


def call_section(name: str, value: Any) -> str:
    """One method or property."""
    if isinstance(value, property):
        return f"### {name}\n\n" + prose(value.__doc__)
    title = code(name) if name.startswith("_") else name
    text = f"### {title}\n\n```text\n{name}{signature(value)}"
    if kind := returned(value):
        text += f" -> {kind}"
    return f"{text}\n```\n\n" + prose(value.__doc__)


def class_section(title: str, kind: type) -> str:
    """One class with its calls."""
    text = f"## {title}\n\n" + prose(kind.__doc__)
    return text + "".join(call_section(name, value) for name, value in calls_of(kind))


def resources(client: Any) -> Iterator[tuple[str, type]]:
    """Attributes of a client that hold calls of their own, such as `client.jobs`."""
    names = {*vars(client), *(name for base in type(client).__mro__ for name in vars(base))}
    for name in sorted(names):
        value = None if name.startswith("_") else getattr(client, name)
        if type(value).__module__.startswith("actograph.client."):
            yield name, type(value)


def page() -> str:
    """Build the page."""
    text = heading("Python API", INTRODUCTION) + class_section("Client", Client)
    with Client("http://127.0.0.1:8420", "") as client:
        for name, kind in resources(client):
            text += class_section(f"client.{name}", kind)
    for kind in (JobHandle, SessionHandle, LazyTensor, Matrix, Patching):
        text += class_section(kind.__name__, kind)
    text += "## Errors\n\n"
    for name in errors.__dict__:
        kind = getattr(errors, name)
        if inspect.isclass(kind) and kind.__module__ == errors.__name__ and not name.startswith("_"):
            text += f"### {name}\n\n" + prose(kind.__doc__)
    return text
