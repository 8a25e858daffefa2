"""Task files: YAML, read without running anything in it."""

import re
from collections.abc import Mapping
from typing import Any

import yaml
from pydantic import ValidationError

from actograph.contract.errors import InvalidRequest
from actograph.contract.tasks import TaskSpec

MAX_FILE_BYTES = 1_000_000
MAX_DEPTH = 64

#: libyaml's parser is ten times as fast
_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NUMBER_TAGS = {
    "tag:yaml.org,2002:int": r"[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|0[0-7_]*|[1-9][0-9_]*)\Z",
    "tag:yaml.org,2002:float": (
        r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?"
        r"|\.(?:inf|Inf|INF))\Z|\.(?:nan|NaN|NAN)\Z"
    ),
}
_PLAIN_TAGS = frozenset(
    {"!", *(f"tag:yaml.org,2002:{kind}" for kind in ("str", "bool", "null", "seq", "map"))}
)


class _Loader(_Base):  # type: ignore[misc]
    """No base-60 numbers, which take quadratic time and which nobody means: `1:30` is a text."""


_Loader.yaml_implicit_resolvers = {
    start: [(tag, pattern) for tag, pattern in resolvers if tag not in _NUMBER_TAGS]
    for start, resolvers in _Loader.yaml_implicit_resolvers.items()
}
for _tag, _pattern in _NUMBER_TAGS.items():
    _Loader.add_implicit_resolver(_tag, re.compile(_pattern), list("-+0123456789."))


def read_task_file(content: bytes, *, param: str = "task") -> dict[str, Any]:
    """The mapping that a task file holds, unchecked but for that.

    Raises:
        InvalidRequest: not YAML, or no mapping.
    """
    if len(content) > MAX_FILE_BYTES:
        raise InvalidRequest(f"the task file is larger than {MAX_FILE_BYTES} bytes", param=param)
    try:
        text = content.decode("utf-8")
        _check_form(text)
        value = yaml.load(text, Loader=_Loader)
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the task file is not UTF-8 (byte {error.start})", param=param) from None
    except (yaml.YAMLError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
        reason = " ".join(str(error).split())
        raise InvalidRequest(f"the task file is not YAML: {reason}", param=param) from None
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise InvalidRequest("the task file holds no mapping of fields", param=param)
    return value


def _check_form(text: str) -> None:
    """Refuse what would take the loader long or far, before it builds anything.

    Raises:
        YAMLError: an alias, a tag, or brackets in brackets in brackets.
    """
    depth = 0
    for event in yaml.parse(text, Loader=_Base):
        # a few lines of them can stand for gigabytes
        if isinstance(event, yaml.events.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not allowed")
        tag = getattr(event, "tag", None)
        if tag is not None and tag not in _PLAIN_TAGS:
            raise yaml.YAMLError(f"tags ({tag[:100]}) are not allowed")
        if isinstance(event, yaml.events.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise yaml.YAMLError(f"nested more than {MAX_DEPTH} deep")
        elif isinstance(event, yaml.events.CollectionEndEvent):
            depth -= 1


def task_from(fields: Mapping[str, Any], *, param: str = "task") -> TaskSpec:
    """Raises InvalidRequest, naming every field at fault."""
    try:
        return TaskSpec.model_validate(fields)
    except ValidationError as error:
        faults = [
            f"{'.'.join(str(part) for part in fault['loc'])}: {fault['msg']}"
            for fault in error.errors(include_url=False, include_input=False)
        ]
        raise InvalidRequest(f"the task file: {'; '.join(faults)}", param=param) from None
