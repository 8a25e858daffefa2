"""A job spec from a file and from flags; a flag wins over the file."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actograph.cli.flags import condition_flags, dataset_flags, scorer_flags
from actograph.cli.flags.durations import NEVER, seconds_of
from actograph.contract.errors import InvalidRequest

if TYPE_CHECKING:
    from actograph.client import Client


def body_of(
    *,
    spec: str | None,
    kind: str | None,
    model: str | None,
    task: str | None,
    dataset: str | None,
    fewshot_dataset: str | None = None,
    prompt: Sequence[str] | None,
    text_field: str | None,
    limit: int | None,
    offset: int | None,
    num_fewshot: int | None,
    epochs: int | None = None,
    mode: str | None = None,
    tool_format: str | None = None,
    max_turns: int | None = None,
    condition: Sequence[str] | None = None,
    conditions: Path | None = None,
    scorer: Sequence[str] | None = None,
    thinking: bool | None,
    chat_template: bool | None,
    capture: str | None = None,
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
) -> tuple[dict[str, Any], dict[str, Path]]:
    """The job that the flags of `jobs submit` describe, and the files to upload first, by field.

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
    if dataset is None and "dataset" not in read:
        read = dataset_flags.of_builtin(task, fewshot=bool(num_fewshot)) | read
    typed = {"dataset": dataset, "fewshot_dataset": fewshot_dataset}
    datasets: dict[str, Any] = {}
    uploads: dict[str, Path] = {}
    for field, text in typed.items():
        if text is not None:
            datasets[field], file = dataset_flags.reference(text, f"--{field.replace('_', '-')}")
            if file is not None:
                uploads[field] = file
    if capture is not None:
        if points or layers is not None or hooks:
            raise InvalidRequest("--capture says it all; leave --points, --layers and --hooks out")
        points, layers, hooks = split_capture(capture)
    changes = {
        "kind": kind or (None if "kind" in read else "capture" if prompt else "evaluation"),
        "model": model,
        "task": own_task or task,
        **datasets,
        "inputs": [{"prompt": text} for text in prompt] if prompt else None,
        "text_field": text_field,
        "limit": limit,
        "offset": offset,
        "num_fewshot": num_fewshot,
        "epochs": epochs,
        "mode": mode,
        "tool_format": tool_format,
        "max_turns": max_turns,
        "conditions": condition_flags.conditions_of(condition or (), conditions),
        "scorers": scorer_flags.as_sent(scorer) if scorer else None,
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
    return merge(read, changes), uploads


def upload(client: "Client", body: dict[str, Any], uploads: Mapping[str, Path]) -> list[str]:
    """Send files and name them in the job; returns their ids."""
    sent = []
    for field, path in uploads.items():
        sent.append(client.files.upload(path, progress=True).id)
        body[field] = {"file_id": sent[-1]}
    return sent


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


def split_capture(text: str) -> tuple[list[str], str | None, list[str]]:
    """Points, layers and hooks of `points@layers`, such as `attn_in,mlp_in@8,12,16` or `resid_post@all`.

    What has a dot or a bracket is a hook by name (`mlp_in.3`).

    Raises:
        InvalidRequest: nothing stands before the @.
    """
    before, _, layers = text.partition("@")
    found = names([before]) or []
    hooks = [name for name in found if "." in name or "[" in name]
    points = [name for name in found if name not in hooks]
    if not found or (layers and not points):
        raise InvalidRequest(f"--capture {text}: say points@layers, such as attn_in,mlp_in@8,12,16")
    return points, layers.strip() or None, hooks


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
