"""Task files: YAML, read in a child process with limits."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from actograph.contract.errors import InvalidRequest
from actograph.contract.tasks import TaskSpec
from actograph.tasks import sandbox
from actograph.tasks.rows import MAX_DEPTH, is_shallow
from actograph.tasks.sandbox import SandboxError

MAX_FILE_BYTES = 1_000_000


def read_task_file(content: bytes, *, param: str = "task") -> dict[str, Any]:
    """Read the fields of a task file, without checking them.

    Raises:
        InvalidRequest: the content is not YAML, or not a mapping.
    """
    if len(content) > MAX_FILE_BYTES:
        raise InvalidRequest(f"the task file is larger than {MAX_FILE_BYTES} bytes", param=param)
    try:
        value = sandbox.call("read_yaml", content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the task file is not UTF-8 (byte {error.start})", param=param) from None
    except SandboxError as error:
        reason = " ".join(str(error).split())
        raise InvalidRequest(f"the task file is not YAML: {reason}", param=param) from None
    if not isinstance(value, dict):
        raise InvalidRequest("the task file is not a mapping of fields", param=param)
    if not is_shallow(value):
        raise InvalidRequest(f"the task file is nested more than {MAX_DEPTH} deep", param=param)
    return value


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
