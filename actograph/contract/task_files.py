"""YAML files: tasks, and jobs of the command line."""

import re
from collections.abc import Mapping
from typing import Any

import yaml
from pydantic import ValidationError

from actograph.contract.errors import InvalidRequest
from actograph.contract.field_wording import in_words
from actograph.contract.tasks import TaskSpec

MAX_FILE_BYTES = 200_000


class _Loader(yaml.SafeLoader):
    """YAML without aliases, in which `1:30` and `2024-05-06` are texts: no base-60 numbers, no dates."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):  # a few lines of them can stand for any number of values
            raise yaml.YAMLError("it uses aliases; write the values out")
        return super().compose_node(parent, index)


_Loader.yaml_implicit_resolvers = {
    start: [
        (tag, re.compile(f"(?!.*:){pattern.pattern}", re.VERBOSE))
        for tag, pattern in resolvers
        if not tag.endswith(":timestamp")
    ]
    for start, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_task_file(content: bytes, *, param: str = "task") -> dict[str, Any]:
    """Read the fields of a task file, without checking them. Raises the errors of `read_mapping`."""
    return read_mapping(content, "the task file", param=param)


def read_mapping(content: bytes, name: str, *, param: str | None = None) -> dict[str, Any]:
    """Read a YAML file that holds a mapping; `name` is its name in errors.

    Raises:
        InvalidRequest: the content is not YAML, or not a mapping.
    """
    if len(content) > MAX_FILE_BYTES:
        raise InvalidRequest(f"{name} is larger than {MAX_FILE_BYTES} bytes", param=param)
    try:
        value = yaml.load(content.decode("utf-8"), Loader=_Loader)
    except RecursionError:
        raise InvalidRequest(f"{name} is nested too deeply", param=param) from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: not UTF-8, or a number of thousands of digits
        reason = " ".join(str(error).split())
        raise InvalidRequest(f"{name} is not YAML: {reason}", param=param) from None
    if not isinstance(value, dict):
        raise InvalidRequest(f"{name} is not a mapping of fields", param=param)
    return value


def task_from(fields: Mapping[str, Any], *, param: str = "task") -> TaskSpec:
    """Check the fields of a task. Raises InvalidRequest with all invalid fields."""
    try:
        return TaskSpec.model_validate(fields)
    except ValidationError as error:
        faults = [
            f"{'.'.join(str(part) for part in fault['loc'])}: {in_words([fault])}"
            for fault in error.errors(include_url=False, include_input=False)
        ]
        raise InvalidRequest(f"the task file: {'; '.join(faults)}", param=param) from None
