"""A job spec from a file and from flags; a flag wins over the file."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from actograph.cli.durations import NEVER, seconds_of
from actograph.contract.errors import InvalidRequest

#: stands in for an upload while the rest of a spec is checked
_UNSENT_FILE = "file_" + "0" * 32


def body_of(
    *,
    spec: str | None,
    kind: str | None,
    model: str | None,
    task: str | None,
    dataset: str | None,
    prompt: Sequence[str] | None,
    text_field: str | None,
    limit: int | None,
    offset: int | None,
    num_fewshot: int | None,
    thinking: bool | None,
    chat_template: bool | None,
    points: Sequence[str] | None,
    layers: str | None,
    hooks: Sequence[str] | None,
    max_tokens: int | None,
    temperature: float | None,
    top_p: float | None,
    top_k: int | None,
    seed: int | None,
    truncate: bool | None,
    layers_per_pass: int | None,
    priority: int | None,
    tag: Sequence[str] | None,
    expires_after: str | None = None,
) -> tuple[dict[str, Any], Path | None]:
    """The job that the flags of `jobs submit` describe, and the dataset to upload first, if any.

    Raises:
        InvalidRequest: a file that is not there or holds no JSON object, or a flag that cannot be read.
    """
    read = read_spec(spec) if spec is not None else {}
    own_task: dict[str, Any] | None = None
    if task is not None and Path(task).suffix in (".yaml", ".yml"):
        own_task, its_dataset = read_task(Path(task))
        if dataset is None and isinstance(its_dataset, str):
            dataset = str(Path(task).parent / its_dataset)
        elif its_dataset is not None and dataset is None:
            read = read | {"dataset": its_dataset}
    upload = Path(dataset) if dataset is not None and not dataset.startswith("file_") else None
    if upload is not None and not upload.is_file():
        raise InvalidRequest(f"--dataset {upload}: there is no such file")
    file_id = _UNSENT_FILE if upload is not None else dataset
    changes = {
        "kind": kind or (None if "kind" in read else "capture" if prompt else "evaluation"),
        "model": model,
        "task": own_task or task,
        "dataset": {"file_id": file_id} if file_id is not None else None,
        "inputs": [{"prompt": text} for text in prompt] if prompt else None,
        "text_field": text_field,
        "limit": limit,
        "offset": offset,
        "num_fewshot": num_fewshot,
        "enable_thinking": thinking,
        "apply_chat_template": chat_template,
        "capture.points": names(points or []),
        "capture.layers": parse_layers(layers) if layers is not None else None,
        "capture.hooks": [name.strip() for name in hooks] if hooks else None,
        "sampling.max_tokens": max_tokens,
        "sampling.temperature": temperature,
        "sampling.top_p": top_p,
        "sampling.top_k": top_k,
        "sampling.seed": seed,
        "truncate": truncate,
        "layers_per_pass": layers_per_pass,
        "priority": priority,
        "tags": list(tag) if tag else None,
        "expires_after": _expiry(expires_after),
    }
    return merge(read, changes), upload


def _expiry(typed: str | None) -> dict[str, int] | str | None:
    if typed is None or typed == NEVER:
        return typed
    return {"seconds": seconds_of(typed, "--expires-after")}


def read_spec(source: str) -> dict[str, Any]:
    """The JSON object in a file, or on standard input for `-`.

    Raises:
        InvalidRequest: no such file, or no JSON object in it.
    """
    try:
        text = sys.stdin.read() if source == "-" else Path(source).read_text(encoding="utf-8")
        spec = json.loads(text)
    except OSError as error:
        raise InvalidRequest(f"cannot read {source}: {error.strerror}") from error
    except ValueError as error:
        raise InvalidRequest(f"{source} is not JSON: {error}") from error
    if not isinstance(spec, dict):
        raise InvalidRequest(f"{source} holds no JSON object")
    return spec


def read_task(path: Path) -> tuple[dict[str, Any], Any]:
    """A task file's task, and the dataset that it names, if any (a path beside it, or a reference).

    Raises:
        InvalidRequest: no such file, or no task in it.
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
    """`spec` with every change that is not None; a dot in a name leads into a nested object.

    Raises:
        InvalidRequest: the file has something else where an object must be.
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


def parse_layers(text: str) -> list[int] | str:
    """`all`, a slice such as `8:20:4`, or a list such as `8,12,16`.

    Raises:
        InvalidRequest: neither.
    """
    if text == "all" or ":" in text:
        return text
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InvalidRequest(
            f"--layers {text}: say all, a slice such as 8:20:4, or numbers such as 8,12,16"
        ) from None


def names(values: Sequence[str]) -> list[str] | None:
    """Values given once each or with commas; None where there are none."""
    found = [part.strip() for value in values for part in value.split(",") if part.strip()]
    return found or None


def check(spec: Mapping[str, Any]) -> None:
    """Find mistakes before anything is sent.

    Raises:
        InvalidRequest: naming every field at fault.
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
