"""Task files: YAML, read without running anything in it."""

from collections.abc import Mapping
from typing import Any

import yaml
from pydantic import ValidationError

from actograph.contract.errors import InvalidRequest
from actograph.contract.tasks import TaskSpec

MAX_FILE_BYTES = 1_000_000


class _Loader(yaml.SafeLoader):
    """No aliases: a few lines of them can stand for gigabytes."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.events.AliasEvent):
            raise yaml.YAMLError("aliases (*name) are not allowed")
        return super().compose_node(parent, index)


def read_task_file(content: bytes, *, param: str = "task") -> dict[str, Any]:
    """The mapping that a task file holds, unchecked but for that.

    Raises:
        InvalidRequest: not YAML, or no mapping.
    """
    if len(content) > MAX_FILE_BYTES:
        raise InvalidRequest(f"the task file is larger than {MAX_FILE_BYTES} bytes", param=param)
    try:
        value = yaml.load(content.decode("utf-8"), Loader=_Loader)
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the task file is not UTF-8 (byte {error.start})", param=param) from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise InvalidRequest(f"the task file is not YAML: {reason}", param=param) from None
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise InvalidRequest("the task file holds no mapping of fields", param=param)
    return value


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
