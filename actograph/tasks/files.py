"""Task files: YAML."""

import json
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


def read_task_file(content: bytes, *, param: str = "task") -> dict[str, Any]:
    """Read the fields of a task file, without checking them.

    Raises:
        InvalidRequest: the content is not YAML, or not a mapping.
    """
    if len(content) > MAX_FILE_BYTES:
        raise InvalidRequest(f"the task file is larger than {MAX_FILE_BYTES} bytes", param=param)
    try:
        text = content.decode("utf-8")
        _check_events(text, param)
        value = json.loads(json.dumps(yaml.load(text, Loader=_Loader)))
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the task file is not UTF-8 (byte {error.start})", param=param) from None
    except (yaml.YAMLError, ValueError, TypeError) as error:
        # ValueError: a number with thousands of digits; TypeError: a value that JSON lacks
        reason = " ".join(str(error).split())
        raise InvalidRequest(
            f"the task file is not YAML of texts and numbers: {reason}", param=param
        ) from None
    if not isinstance(value, dict):
        raise InvalidRequest("the task file is not a mapping of fields", param=param)
    return value


def _check_events(text: str, param: str) -> None:
    """Refuse aliases, since a few lines of them can stand for any number of values, and deep nesting."""
    depth = 0
    for event in yaml.parse(text, Loader=_SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            raise InvalidRequest(
                f"the task file uses the alias *{event.anchor}; write the value out",
                param=param,
            )
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise InvalidRequest(f"the task file is nested more than {MAX_DEPTH} deep", param=param)


def task_from(fields: Mapping[str, Any], *, param: str = "task") -> TaskSpec:
    """Check the fields of a task. Raises InvalidRequest with all invalid fields."""
    try:
        return TaskSpec.model_validate(fields)
    except ValidationError as error:
        faults = [
            f"{'.'.join(str(part) for part in fault['loc'])}: {fault['msg']}"
            for fault in error.errors(include_url=False, include_input=False)
        ]
        raise InvalidRequest(f"the task file: {'; '.join(faults)}", param=param) from None
