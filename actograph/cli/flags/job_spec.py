"""A job spec from a file and from flags, which override the file."""

import json
import sys
from pathlib import Path
from typing import Any

from actograph.cli.flags.job_flags import JOB_FLAGS
from actograph.contract.errors import InvalidRequest
from actograph.job_requests.assembly import JobRequest, assemble
from actograph.job_requests.conditions import conditions_of


def request_of(**flags: Any) -> JobRequest:
    """Return the job that flags of `JOB_FLAGS` describe, and its files to upload.

    Raises:
        InvalidRequest: a missing file, a file without a JSON object, or an invalid flag.
    """
    typed = {name: value for name, value in flags.items() if value not in (None, [])}
    base = read_spec(typed["spec"]) if "spec" in typed else {}
    if "capture" in typed and typed.keys() & {"points", "layers", "hooks"}:
        raise InvalidRequest("--capture excludes --points, --layers and --hooks")
    fields = {
        flag.field: flag.convert(typed[name])
        for name, flag in JOB_FLAGS.items()
        if flag.field and name in typed
    }
    if "capture" in typed:
        fields["capture"] = typed["capture"]
    fields["conditions"] = conditions_of(typed.get("condition", ()), typed.get("conditions"))
    return assemble(fields, base, shown=lambda name: f"--{name.replace('_', '-')}")


def read_spec(source: str) -> dict[str, Any]:
    """Read the JSON object in a file, or on standard input for `-`.

    Raises:
        InvalidRequest: the file cannot be read, or is not a JSON object.
    """
    try:
        text = sys.stdin.read() if source == "-" else Path(source).read_text(encoding="utf-8")
        spec = json.loads(text)
    except OSError as error:
        raise InvalidRequest(f"cannot read {source}: {error.strerror}") from error
    except ValueError as error:
        raise InvalidRequest(f"{source} is not JSON: {error}") from error
    if not isinstance(spec, dict):
        raise InvalidRequest(f"{source} is not a JSON object")
    return spec
