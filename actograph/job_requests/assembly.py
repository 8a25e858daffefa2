"""Assemble a job: fields over a base, task files, datasets and captures given as texts."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from actograph.contract.errors import InvalidRequest
from actograph.job_requests import datasets
from actograph.job_requests.captures import capture_of

_DATASETS = ("dataset", "fewshot_dataset")


@dataclass
class JobRequest:
    """The body of a job, and the files to upload first, by field."""

    body: dict[str, Any]
    uploads: dict[str, Path] = field(default_factory=dict)


def assemble(
    fields: Mapping[str, Any],
    base: Mapping[str, Any] | None = None,
    *,
    shown: Callable[[str], str] = lambda name: name,
) -> JobRequest:
    """Return the job that `fields` describe; they override those of `base`. None is no value.

    Args:
        fields: fields of a job spec; a dot leads into a nested object (`sampling.seed`). `capture` may be a
            text (`POINTS@LAYERS`), `task` a YAML file, and a dataset a text as `datasets.reference` reads it.
        base: a job spec, as a client sends it.
        shown: the name of a field in errors.

    Raises:
        InvalidRequest: a missing file, or an invalid text.
    """
    changes = {name: value for name, value in fields.items() if value is not None}
    known, uploads = dict(base or {}), dict[str, Path]()
    task = changes.get("task")
    if isinstance(task, str | Path) and Path(task).suffix in (".yaml", ".yml"):
        changes["task"], its_dataset = read_task(Path(task))
        if "dataset" not in changes and isinstance(its_dataset, str):
            changes["dataset"] = str(Path(task).parent / its_dataset)
        elif "dataset" not in changes and its_dataset is not None:
            known["dataset"] = its_dataset
    elif isinstance(task, str) and "dataset" not in changes and "dataset" not in known:
        known = datasets.of_builtin(task, fewshot=bool(changes.get("num_fewshot"))) | known
    for name in _DATASETS:
        if isinstance(changes.get(name), str | Path):
            changes[name], file = datasets.reference(str(changes[name]), shown(name))
            if file is not None:
                uploads[name] = file
    if "capture" in changes:
        captured = capture_of(changes.pop("capture"))
        parts = {f"capture.{name}": value for name, value in captured.items()}
        changes = (parts or {"capture": {}}) | changes
    if "kind" not in changes and "kind" not in known:
        changes["kind"] = "capture" if "inputs" in changes else "evaluation"
    return JobRequest(merge(known, changes), uploads)


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


def check(spec: Mapping[str, Any]) -> None:
    """Check a job before it is sent.

    Raises:
        InvalidRequest: the message lists every invalid field.
    """
    from pydantic import ValidationError

    from actograph.contract.specs import ANALYSIS_KINDS, JOB_KINDS, submitted_spec_adapter

    try:
        submitted_spec_adapter.validate_python(spec)
    except ValidationError as error:
        faults, kinds = [], (*JOB_KINDS, *ANALYSIS_KINDS)
        for fault in error.errors(include_url=False, include_input=False):
            place = ".".join(str(part) for part in fault["loc"] if part not in kinds) or "job"
            faults.append(f"{place}: {fault['msg']}")
        raise InvalidRequest("; ".join(faults)) from error
