"""A job from a file and from flags, which override the file. For `jobs submit`, `eval` and `estimate`."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from actograph.cli.flags import NEVER, ScorersOption, names, scorers_of, seconds_of
from actograph.contract.errors import InvalidRequest

if TYPE_CHECKING:
    from actograph.client import Client

#: placeholder of an upload while the rest of a spec is checked
_UNSENT_FILE = "file_" + "0" * 32
_CONDITION_NUMBERS = {"temperature": float, "top_p": float, "top_k": int}
_CONDITION_FIELDS = ("system", "prefix", "suffix", "tools", *_CONDITION_NUMBERS)

_DATASET = (
    "File to upload (JSONL, CSV or Parquet), id of an uploaded file (file_...), path:... under a data root "
    "of the service, or hub:OWNER/NAME[:CONFIG[:SPLIT]]."
)
_CONDITION = (
    "Condition: `plain`, `EP02:suffix=This matters.` or `calc:tools=calculator`. Repeat for more; the first "
    f"is the baseline. Fields: {' '.join(_CONDITION_FIELDS)}."
)
#: parameter -> type, field of the spec and help; a dot leads into a nested object
_FLAGS: dict[str, tuple[Any, str, str]] = {
    "kind": (str, "kind", "evaluation or capture."),
    "model": (str, "model", "Default: the only served model."),
    "task": (str, "task", "gsm8k, another task, or a YAML file."),
    "dataset": (str, "dataset", _DATASET),
    "fewshot_dataset": (str, "fewshot_dataset", "Source of few-shot examples. Default: the dataset."),
    "prompt": (list[str], "inputs", "Prompt of a capture job. Repeat for more."),
    "text_field": (str, "text_field", "Dataset field with the prompts of a capture job."),
    "limit": (int, "limit", "Maximum number of dataset rows."),
    "offset": (int, "offset", "Dataset rows to skip."),
    "num_fewshot": (int, "num_fewshot", "Number of few-shot examples."),
    "epochs": (int, "epochs", "Answers per problem."),
    "tools": (str, "tools", "none or calculator."),
    "tool_format": (str, "tool_format", "template (the model's own) or annotations (<<48/2=24>>)."),
    "max_turns": (int, "max_turns", "Maximum number of turns with tools."),
    "condition": (list[str], "", _CONDITION),
    "conditions": (Path, "", 'JSON file with a list of conditions, or {"stimuli": {NAME: SUFFIX}}.'),
    "thinking": (bool, "enable_thinking", "Let the model think."),
    "chat_template": (bool, "apply_chat_template", "Default: apply it if the model has one."),
    "capture": (str, "", "POINTS[@LAYERS], such as attn_in,mlp_in@8:20:4, or hooks by name: mlp_in.3."),
    "mode": (str, "capture.mode", "generate, or prefill: read the prompts and generate nothing."),
    "max_tokens": (int, "sampling.max_tokens", "Maximum number of generated tokens per sample."),
    "temperature": (float, "sampling.temperature", "0 is greedy."),
    "top_p": (float, "sampling.top_p", "Nucleus sampling probability."),
    "top_k": (int, "sampling.top_k", "Sample from the k likeliest tokens."),
    "seed": (int, "sampling.seed", "Seed of the job."),
    "engine": (str, "engine", "auto, streaming, or traced: under nnsight, as a reference."),
    "truncate": (bool, "truncate", "Mode prefill: cut texts to the model's context."),
    "priority": (int, "priority", "0 runs first, 9 last."),
    "tag": (list[str], "tags", "Tag. Repeat for more."),
    "expires_after": (str, "expires_after", "Delete each session after 12h, 7d, ..., or `never`."),
}


def job_options(without: Sequence[str] = ()) -> dict[str, Any]:
    """Annotations of the job flags, for `command`."""
    spec = Annotated[str | None, typer.Argument(metavar="SPEC.json|-", help="Job as JSON; - reads stdin.")]
    options: dict[str, Any] = {
        name: Annotated[kind | None, typer.Option(help=about)] for name, (kind, _, about) in _FLAGS.items()
    }
    options = {"spec": spec, **options, "scorer": ScorersOption}
    return {name: option for name, option in options.items() if name not in without}


def body_of(**flags: Any) -> tuple[dict[str, Any], dict[str, Path]]:
    """Return the job that the flags of `job_options` describe, and the files to upload, by field.

    Raises:
        InvalidRequest: a file without a JSON object, or an invalid flag.
        OSError: a file cannot be read.
    """
    from actograph.contract.base import merged

    typed = {name: value for name, value in flags.items() if value not in (None, [])}
    body = _read_json(typed["spec"]) if "spec" in typed else {}
    if not isinstance(body, dict):
        raise InvalidRequest(f"{typed['spec']} is not a JSON object")
    task = typed.get("task")
    if task is not None and Path(task).suffix in (".yaml", ".yml"):
        typed = _task_of(Path(typed.pop("task"))) | typed
    if "dataset" not in typed and "dataset" not in body:
        body = _datasets_of(task, fewshot=bool(typed.get("num_fewshot"))) | body
    uploads: dict[str, Path] = {}
    for field in ("dataset", "fewshot_dataset"):
        if isinstance(typed.get(field), str):
            typed[field], file = _dataset(typed[field], f"--{field.replace('_', '-')}")
            uploads |= {} if file is None else {field: file}
    if "prompt" in typed:
        typed["prompt"] = [{"prompt": text} for text in typed["prompt"]]
    if typed.get("expires_after", NEVER) != NEVER:
        typed["expires_after"] = {"seconds": seconds_of(typed["expires_after"], "--expires-after")}
    if "kind" not in body:
        typed.setdefault("kind", "capture" if "prompt" in typed else "evaluation")
    changes = {field: typed[name] for name, (_, field, _) in _FLAGS.items() if field and name in typed}
    if "scorer" in typed:
        changes["scorers"] = scorers_of(typed["scorer"])
    if "capture" in typed:
        changes |= {f"capture.{name}": part for name, part in capture_of(typed["capture"]).items()}
    if "condition" in typed or "conditions" in typed:
        changes["conditions"] = conditions_of(typed.get("condition", ()), typed.get("conditions"))
    # a flag replaces an object of the file, such as the dataset
    kept = {field: value for field, value in body.items() if not isinstance(changes.get(field), dict)}
    return merged(kept, changes), uploads


def upload(client: "Client", body: dict[str, Any], uploads: Mapping[str, Path]) -> list[str]:
    """Upload files and put their ids into the job. Returns the ids."""
    sent = []
    for field, path in uploads.items():
        sent.append(client.files.upload(path, progress=True).id)
        body[field] = {"file_id": sent[-1]}
    return sent


def complete(client: "Client", body: dict[str, Any]) -> None:
    """Add the served model if the job has none, and check the job before it is sent.

    Raises:
        InvalidRequest: the message lists every invalid field.
    """
    from pydantic import ValidationError

    from actograph.contract.analyses.specs import ANALYSIS_KINDS
    from actograph.contract.job_specs import field_errors, job_spec_adapter

    if "model" not in body and body.get("kind") not in ANALYSIS_KINDS:
        body["model"] = client.models.only()
    try:
        job_spec_adapter.validate_python(body)
    except ValidationError as error:
        faults = field_errors(error.errors(include_url=False), body)
        raise InvalidRequest("; ".join(map(str, faults))) from error


def capture_of(text: str) -> dict[str, Any]:
    """Return the points, layers and hooks of `points@layers`, such as `attn_in,mlp_in@8,12,16`.

    A name with a dot or a bracket is a hook (`mlp_in.3`).

    Raises:
        InvalidRequest: there are no points before the @, or the layers are not valid.
    """
    before, _, typed = text.partition("@")
    found = names([before])
    hooks = [name for name in found if "." in name or "[" in name]
    points = [name for name in found if name not in hooks]
    if not found or (typed and not points):
        raise InvalidRequest(
            f"--capture {text!r} is not valid; use points@layers, such as attn_in,mlp_in@8,12,16"
        )
    layers: str | list[int] = typed.strip()
    if layers != "all" and ":" not in layers:
        try:
            layers = [int(part) for part in names([typed])]
        except ValueError:
            raise InvalidRequest(
                f"--capture: layers {typed!r} are not valid; use all, a slice such as 8:20:4, or 8,12,16"
            ) from None
    return {name: part for name, part in (("points", points), ("hooks", hooks), ("layers", layers)) if part}


def conditions_of(typed: Sequence[str], file: Path | None) -> list[Any]:
    """Return the conditions of `--condition`, then those of `--conditions`.

    Repeating a name adds a field. Without a `--condition`, a plain `baseline` precedes the stimuli of a file.

    Raises:
        InvalidRequest: a condition is invalid.
    """
    found: dict[str, dict[str, Any]] = {}
    for text in typed:
        name, colon, rest = text.partition(":")
        field, equals, value = rest.partition("=")
        if not name or (colon and not (equals and field in _CONDITION_FIELDS)):
            known = ", ".join(_CONDITION_FIELDS)
            raise InvalidRequest(
                f"--condition {text!r} is not NAME or NAME:FIELD=VALUE, with a field of {known}"
            )
        condition = found.setdefault(name, {"name": name})
        if field in _CONDITION_NUMBERS:
            try:
                condition.setdefault("sampling", {})[field] = _CONDITION_NUMBERS[field](value)
            except ValueError:
                raise InvalidRequest(f"--condition {text}: {value!r} is not a number") from None
        elif field:
            condition[field] = value
    listed: list[Any] = list(found.values())
    if file is None:
        return listed
    content = _read_json(str(file))
    if isinstance(content, dict) and isinstance(content.get("stimuli"), dict):
        if not listed and "baseline" not in content["stimuli"]:
            listed = [{"name": "baseline"}]
        return listed + [{"name": name, "suffix": suffix} for name, suffix in content["stimuli"].items()]
    if not isinstance(content, list):
        raise InvalidRequest(f'{file}: use a list of conditions, or {{"stimuli": {{NAME: SUFFIX}}}}')
    return [*listed, *content]


def _dataset(typed: str, flag: str) -> tuple[dict[str, Any], Path | None]:
    """Return the dataset of a job spec, and the file to upload first, if any. Raises InvalidRequest."""
    scheme, _, rest = typed.partition(":")
    if typed.startswith("file_"):
        return {"file_id": typed}, None
    if scheme == "path" and rest:
        return {"path": rest}, None
    if scheme == "hub" and rest:
        parts = zip(("hub", "config", "split"), rest.split(":", 2), strict=False)
        return {name: part for name, part in parts if part}, None
    if not Path(typed).is_file():
        raise InvalidRequest(f"{flag}: no file {typed!r}")
    return {"file_id": _UNSENT_FILE}, Path(typed)


def _datasets_of(task: str | None, *, fewshot: bool) -> dict[str, Any]:
    """Return lm-eval's datasets for a built-in task; {} for other tasks."""
    from actograph.contract.tasks import TaskName

    if task not in get_args(TaskName):
        return {}
    datasets = {"dataset": {"hub": "openai/gsm8k", "config": "main", "split": "test"}}
    return datasets | ({"fewshot_dataset": datasets["dataset"] | {"split": "train"}} if fewshot else {})


def _task_of(path: Path) -> dict[str, Any]:
    """Return the flags `task` and `dataset` (if it names one) of a task file.

    Raises:
        InvalidRequest, OSError: the file cannot be used.
    """
    from actograph.tasks.files import read_task_file, task_from

    try:
        fields = read_task_file(path.read_bytes())
    except InvalidRequest as error:
        raise InvalidRequest(f"{path}: {error.message}") from None
    dataset = fields.pop("dataset", None)
    task_from(fields)
    found = {"task": fields, "dataset": str(path.parent / dataset) if isinstance(dataset, str) else dataset}
    return {name: value for name, value in found.items() if value is not None}


def _read_json(source: str) -> Any:
    """Read a JSON file, or standard input for `-`. Raises InvalidRequest and OSError."""
    text = sys.stdin.read() if source == "-" else Path(source).read_text(encoding="utf-8")
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidRequest(f"{source} is not JSON: {error}") from error
