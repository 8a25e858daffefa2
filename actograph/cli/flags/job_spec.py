"""A job spec from a file and from flags, which override the file."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actograph.cli.flags import condition_flags, dataset_flags
from actograph.cli.flags.job_flags import JOB_FLAGS, names, parse_layers
from actograph.contract.errors import InvalidRequest

if TYPE_CHECKING:
    from actograph.client import Client


def body_of(**flags: Any) -> tuple[dict[str, Any], dict[str, Path]]:
    """Return the job that flags of `JOB_FLAGS` describe, and the files to upload, by field.

    Raises:
        InvalidRequest: a missing file, a file without a JSON object, or an invalid flag.
    """
    typed = {name: value for name, value in flags.items() if value not in (None, [])}
    read = read_spec(typed["spec"]) if "spec" in typed else {}
    task = typed.get("task")
    if task is not None and Path(task).suffix in (".yaml", ".yml"):
        typed["task"], its_dataset = read_task(Path(task))
        if "dataset" not in typed and isinstance(its_dataset, str):
            typed["dataset"] = str(Path(task).parent / its_dataset)
        elif "dataset" not in typed and its_dataset is not None:
            read = read | {"dataset": its_dataset}
    if "dataset" not in typed and "dataset" not in read:
        read = dataset_flags.of_builtin(task, fewshot=bool(typed.get("num_fewshot"))) | read
    uploads: dict[str, Path] = {}
    for field in ("dataset", "fewshot_dataset"):
        if field in typed:
            typed[field], file = dataset_flags.reference(typed[field], f"--{field.replace('_', '-')}")
            if file is not None:
                uploads[field] = file
    if "kind" not in typed and "kind" not in read:
        typed["kind"] = "capture" if "prompt" in typed else "evaluation"
    changes = {
        flag.field: flag.convert(typed[name])
        for name, flag in JOB_FLAGS.items()
        if flag.field and name in typed
    }
    if "capture" in typed:
        changes |= {f"capture.{name}": part for name, part in capture_of(typed["capture"]).items()}
    changes["conditions"] = condition_flags.conditions_of(typed.get("condition", ()), typed.get("conditions"))
    return merge(read, changes), uploads


def upload(client: "Client", body: dict[str, Any], uploads: Mapping[str, Path]) -> list[str]:
    """Upload files and put their ids into the job. Returns the ids."""
    sent = []
    for field, path in uploads.items():
        sent.append(client.files.upload(path, progress=True).id)
        body[field] = {"file_id": sent[-1]}
    return sent


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


def read_task(path: Path) -> tuple[dict[str, Any], Any]:
    """Return the task of a task file, and its dataset, if any (a path beside the file, or a reference).

    Raises:
        InvalidRequest: the file cannot be read, or is not a task.
    """
    from actograph.tasks.files import read_task_file, task_from

    try:
        fields = read_task_file(path.read_bytes())
    except OSError as error:
        raise InvalidRequest(f"cannot read {path}: {error.strerror}") from error
    except InvalidRequest as error:
        raise InvalidRequest(f"{path}: {error.message}") from None
    dataset = fields.pop("dataset", None)
    task_from(fields)
    return fields, dataset


def merge(spec: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return `spec` with all changes that are not None; a dot in a name leads into a nested object.

    Raises:
        InvalidRequest: a field of the file is not an object, but a flag sets a field in it.
    """
    merged = json.loads(json.dumps(spec))
    for name, value in changes.items():
        if value is None:
            continue
        *outer, last = name.split(".")
        place: Any = merged
        for part in outer:
            if place.get(part) is None:
                place[part] = {}
            place = place[part]
            if not isinstance(place, dict):
                raise InvalidRequest(f"{part} of the job file is not an object")
        place[last] = value
    assert isinstance(merged, dict)
    return merged


def capture_of(text: str) -> dict[str, Any]:
    """Return the points, layers and hooks of `points@layers`, such as `attn_in,mlp_in@8,12,16`.

    A name with a dot or a bracket is a hook (`mlp_in.3`).

    Raises:
        InvalidRequest: there are no points before the @, or the layers are not valid.
    """
    before, _, layers = text.partition("@")
    found = names([before]) or []
    hooks = [name for name in found if "." in name or "[" in name]
    points = [name for name in found if name not in hooks]
    if not found or (layers and not points):
        raise InvalidRequest(
            f"--capture {text!r} is not valid; use points@layers, such as attn_in,mlp_in@8,12,16"
        )
    parts = {"points": points, "hooks": hooks, "layers": parse_layers(layers.strip()) if layers else None}
    return {name: part for name, part in parts.items() if part}


def check(spec: Mapping[str, Any]) -> None:
    """Check a job before it is sent.

    Raises:
        InvalidRequest: the message lists every invalid field.
    """
    from pydantic import ValidationError

    from actograph.contract.specs import JOB_KINDS, job_spec_adapter

    try:
        job_spec_adapter.validate_python(spec)
    except ValidationError as error:
        faults = []
        for fault in error.errors(include_url=False, include_input=False):
            place = ".".join(str(part) for part in fault["loc"] if part not in JOB_KINDS) or "job"
            faults.append(f"{place}: {fault['msg']}")
        raise InvalidRequest("; ".join(faults)) from error


def complete(client: "Client", body: dict[str, Any]) -> None:
    """Add the served model if the job has none, and check the job before it is sent.

    Raises:
        InvalidRequest: the message lists every invalid field.
    """
    if "model" not in body:
        served = client.models.list()
        if len(served) != 1:
            listed = ", ".join(model.id for model in served) or "none"
            raise InvalidRequest(f"choose a model with --model; served: {listed}", param="model")
        body["model"] = served[0].id
    check(body)
