"""The child process of `sandbox`: Jinja templates and YAML files of clients.

A short template or file can ask for gigabytes or hours. The process has limits of memory and CPU time,
and it can open no file and no connection.
"""

import encodings.unicode_escape
import html
import json
import pprint
import re
import resource
import signal
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

import jinja2.debug
import yaml
from jinja2 import StrictUndefined, Template, Undefined
from jinja2.meta import find_undeclared_variables
from jinja2.runtime import TemplateReference
from jinja2.sandbox import ImmutableSandboxedEnvironment

from actograph.limited_process import limit_memory
from actograph.tasks.sandbox import MAX_REPLY_BYTES

#: modules that are otherwise imported when first used, when no file can be opened any more
_LOADED = (encodings.unicode_escape, html, jinja2.debug, pprint, textwrap)
MEMORY_BYTES = 320 << 20
CPU_SECONDS = 2.0

#: libyaml's parser is ten times as fast
_SafeLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_SafeLoader):  # type: ignore[misc]
    """YAML in which `1:30` and `2024-05-06` are texts: no base-60 numbers, no dates."""


_Loader.yaml_implicit_resolvers = {
    start: [
        (tag, re.compile(f"(?!.*:){pattern.pattern}", re.VERBOSE))
        for tag, pattern in resolvers
        if not tag.endswith(":timestamp")
    ]
    for start, resolvers in _SafeLoader.yaml_implicit_resolvers.items()
}


def read_yaml(text: str) -> Any:
    """The value of a YAML document."""
    return yaml.load(text, Loader=_Loader)


def _printable(value: Any) -> Any:
    """Refuse objects without a text: `{{question.upper}}` would print the method's address."""
    has_text = isinstance(value, Undefined) or not (callable(value) or isinstance(value, Iterator))
    if not has_text or isinstance(value, TemplateReference):
        name = getattr(value, "__name__", type(value).__name__)
        raise TypeError(f"{name} is not a value; call a method with brackets, such as question.upper()")
    return value


_ENVIRONMENT = ImmutableSandboxedEnvironment(
    undefined=StrictUndefined, keep_trailing_newline=True, finalize=_printable
)
_ENVIRONMENT.globals.clear()
del _ENVIRONMENT.filters["random"]  # a prompt must be the same in the API and in the worker


@lru_cache(maxsize=64)
def _compiled(source: str) -> Template:
    return _ENVIRONMENT.from_string(source)


def columns_of(source: str) -> list[str]:
    """The columns that a template uses; fails if it is not a template."""
    _compiled(source)
    return sorted(find_undeclared_variables(_ENVIRONMENT.parse(source)))


def render(source: str, columns: Mapping[str, Any], max_chars: int) -> str:
    """The template's text for one row."""
    text = _compiled(source).render(columns)
    if len(text) > max_chars:
        raise ValueError(f"makes a text longer than {max_chars} characters")
    return text


_CALLS: Mapping[str, Callable[..., Any]] = {
    "read_yaml": read_yaml,
    "columns_of": columns_of,
    "render": render,
}


def _reply(request: Mapping[str, Any]) -> str:
    try:
        reply = json.dumps({"value": _CALLS[request["call"]](*request["arguments"])})
    except MemoryError:
        sys.exit(1)
    except Exception as error:  # noqa: BLE001 (whatever the template raised)
        message = str(error) or "too deeply nested"
        return json.dumps({"error": type(error).__name__, "message": message[:1000]})
    if len(reply) > MAX_REPLY_BYTES:
        sys.exit(1)
    return reply


def main() -> None:
    """Answer requests until standard input ends; the timer's signal kills the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    limit_memory(MEMORY_BYTES)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
    for line in sys.stdin.buffer:
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        reply = _reply(json.loads(line))
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.write(reply + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
