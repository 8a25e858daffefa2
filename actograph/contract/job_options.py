"""Jobs from options: for `client.evaluate` and `client.capture`, and for the command line."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict, get_args

from pydantic import BaseModel, ValidationError

from actograph.contract.analyses import ANALYSIS_KINDS
from actograph.contract.base import as_json, merged
from actograph.contract.errors import InvalidRequest
from actograph.contract.job_specs import ToolForm, field_errors, job_spec_adapter
from actograph.contract.models import EngineChoice
from actograph.contract.row_selection import Reduce
from actograph.contract.specs import Dtype, Tools
from actograph.contract.task_files import read_task_file, task_from
from actograph.contract.tasks import TaskName
from actograph.short_texts import NEVER, seconds_of

Fields = Mapping[str, Any] | BaseModel
Capture = str | Fields
#: a local file, `file_...`, `path:...`, `hub:OWNER/NAME[:CONFIG[:SPLIT]]`, or a spec
Dataset = str | Path | Fields
#: tokens, as in a capture spec
Positions = str | int | Sequence[int] | Sequence[str] | Fields
#: texts, conversations, or inputs of a capture job as they are sent, with a label or a group
Prompts = str | Sequence[str | Sequence[Mapping[str, str]] | Mapping[str, Any] | BaseModel]
#: each `NAME`, `NAME:FIELD=VALUE` or a spec; or name -> suffix of the question
#: an intervention is a spec, or `VECTOR@HOOK*COEFFICIENT[@POSITIONS]`, which adds a stored vector
#: a coefficient with a percent sign is a share of each row's norm
_STEER = re.compile(r"(?P<vector>[^@*]+)@(?P<hook>[^@*]+)\*(?P<coefficient>[^@*]+)(@(?P<positions>[^@]+))?")
#: a latent of an SAE as a vector
_LATENT = re.compile(r"sae:(?P<sae>[^:]+):(?P<latent>\d{1,8})")
#: an SAE or a vector, perhaps with its hook and the number of latents
_SAE = re.compile(r"(?P<sae>[^@:]+)(@(?P<hook>[^@:]+))?(:(?P<top>\d{1,8}))?")
_READOUT = re.compile(r"(?P<vector>[^@]+)(@(?P<hook>[^@]+))?")
Conditions = Sequence[str | Fields] | Mapping[str, str]


class JobOptions(TypedDict, total=False):
    """Fields of a job by name, those of `sampling` and `capture` too. None and absent ones have defaults."""

    model: str | Mapping[str, str] | None
    dataset: Dataset | None
    limit: int | None
    offset: int | None
    epochs: int | None
    conditions: Conditions | None
    interventions: str | Sequence[str | Fields] | None
    enable_thinking: bool | None
    capture: Capture | None
    mode: Literal["generate", "prefill"] | None
    positions: Positions | None
    features: int | str | Sequence[int] | Fields | None
    reduce: Reduce | None
    stats: bool | Fields | None
    dtype: Dtype | None
    max_tokens: int | None
    temperature: float | None
    top_p: float | None
    top_k: int | None
    seed: int | None
    engine: EngineChoice | None
    priority: int | None
    tags: Sequence[str] | None
    expires_after: str | None


class EvaluationOptions(JobOptions, total=False):
    """Options of `client.evaluate`."""

    fewshot_dataset: Dataset | None
    num_fewshot: int | None
    scorers: Sequence[str | Fields] | None
    tools: Tools | None
    tool_format: ToolForm | None
    max_turns: int | None
    apply_chat_template: bool | None


class CaptureOptions(JobOptions, total=False):
    """Options of `client.capture`."""

    text_field: str | None
    truncate: bool | None


class PatchOptions(TypedDict, total=False):
    """Options of `client.patch`."""

    model: str | None
    pair_by: str | None
    direction: Literal["denoise", "noise"] | None
    points: Sequence[str] | str | None
    layers: Sequence[int] | str | None
    heads: Sequence[int] | Literal["all"] | None
    positions: Sequence[int | str] | Literal["all"] | None
    metric: Literal["log_probability", "logit_difference"] | Fields | None
    answer: int | str | None
    against: int | str | None
    engine: EngineChoice | None
    priority: int | None
    tags: Sequence[str] | None
    expires_after: str | None


class ReplayOptions(TypedDict, total=False):
    """Options of `client.replay`."""

    model: str | None
    capture: Capture | None
    positions: Positions | None
    features: int | str | Sequence[int] | Fields | None
    reduce: Reduce | None
    stats: bool | Fields | None
    dtype: Dtype | None
    tolerance: float | None
    engine: EngineChoice | None
    priority: int | None
    tags: Sequence[str] | None
    expires_after: str | None


#: option -> place in the spec, if that is not a field of its name
_PLACES = {
    **{name: f"sampling.{name}" for name in ("max_tokens", "temperature", "top_p", "top_k", "seed")},
    **{
        name: f"capture.{name}"
        for name in ("mode", "positions", "features", "reduce", "stats", "dtype", "saes", "readouts")
    },
}
#: placeholder of an upload while the rest of a spec is checked
_UNSENT_FILE = "file_" + "0" * 32
_CONDITION_NUMBERS = {"temperature": float, "top_p": float, "top_k": int}
CONDITION_FIELDS = ("system", "prefix", "suffix", "tools", "steer", *_CONDITION_NUMBERS)


@dataclass(frozen=True)
class Draft:
    """A job before it is sent: its spec, and files to upload by field."""

    body: dict[str, Any]
    uploads: Mapping[str, Path]

    def complete(self, served_model: Callable[[], str]) -> None:
        """Check the job; if it needs a model and names none, it gets the served one.

        Raises:
            InvalidRequest: the message lists every invalid field.
        """
        if "model" not in self.body and self.body.get("kind") not in (*ANALYSIS_KINDS, "replay", "patch"):
            self.body["model"] = served_model()
        try:
            job_spec_adapter.validate_python(self.body)
        except ValidationError as error:
            faults = field_errors(error.errors(include_url=False), self.body)
            raise InvalidRequest("; ".join(map(str, faults))) from error

    def upload(self, send: Callable[[Path], str]) -> list[str]:
        """Send the files, and put the ids that `send` returns into the job. Returns the ids."""
        sent = []
        for field, path in self.uploads.items():
            sent.append(send(path))
            self.body[field] = {"file_id": sent[-1]}
        return sent


def draft(options: Mapping[str, Any], body: Mapping[str, Any] | None = None) -> Draft:
    """Return the job that options describe; they override the fields of `body`.

    Without a dataset a built-in task has lm-eval's.

    Raises:
        InvalidRequest: an option is not valid.
        OSError: a file cannot be read.
    """
    given = {name: value for name, value in options.items() if value is not None}
    job = dict(body or {})
    task = given.get("task")
    if isinstance(task, str | Path) and Path(task).suffix in (".yaml", ".yml"):
        given = _task_of(Path(given.pop("task"))) | given
    if not {"dataset", "inputs"} & (given.keys() | job.keys()):
        job = _datasets_of(task, fewshot=bool(given.get("num_fewshot"))) | job
    if "kind" not in job:
        kinds = {"inputs": "capture", "sessions": "replay"}
        given.setdefault("kind", next((kind for name, kind in kinds.items() if name in given), "evaluation"))
    uploads: dict[str, Path] = {}
    for field in ("dataset", "fewshot_dataset"):
        if field in given:
            given[field], file = _dataset(given[field], field)
            uploads |= {} if file is None else {field: file}
    if "features" in given:
        given["features"] = features_of(given["features"])
    if isinstance(given.get("points"), str):
        given["points"] = _names(given["points"])
    if "sessions" in given:
        given["sessions"] = sessions_of(given["sessions"])
    if "inputs" in given:
        given["inputs"] = inputs_of(given["inputs"])
    if "tools" in given:
        given["tools"] = _tools(given["tools"])
    if "interventions" in given:
        given["interventions"] = interventions_of(given["interventions"])
    if "saes" in given:
        given["saes"] = [sae_of(one) if isinstance(one, str) else one for one in given["saes"]]
    if "readouts" in given:
        given["readouts"] = [readout_of(one) if isinstance(one, str) else one for one in given["readouts"]]
    if "conditions" in given:
        given["conditions"] = conditions_of(given["conditions"])
    if given.get("expires_after", NEVER) != NEVER:
        given["expires_after"] = {"seconds": seconds_of(given["expires_after"], "expires_after")}
    captured = {f"capture.{name}": part for name, part in capture_of(given.pop("capture", {})).items()}
    # the positions of a patch job are cells, and it captures nothing
    places = {} if given.get("kind", job.get("kind")) == "patch" else _PLACES
    changes = captured | {places.get(name, name): as_json(value) for name, value in given.items()}
    # an option replaces an object of the body, such as the dataset
    kept = {field: value for field, value in job.items() if not isinstance(changes.get(field), dict)}
    return Draft(merged(kept, changes), uploads)


def capture_of(given: Capture) -> dict[str, Any]:
    """Return the fields of a capture spec: of `points@layers`, such as `attn_in,mlp_in@8,12,16`, or as given.

    A name with a dot or a bracket is a hook (`mlp_in.3`); `{i}` in one stands for each of the layers.

    Raises:
        InvalidRequest: there are no points before the @, or the layers are not valid.
    """
    if not isinstance(given, str):
        return dict(as_json(given))
    before, _, typed = given.partition("@")
    found = _names(before)
    hooks = [name for name in found if "." in name or "[" in name]
    points = [name for name in found if name not in hooks]
    if not found or (typed and not points and not any("{i}" in name for name in hooks)):
        raise InvalidRequest(
            f"capture: {given!r} is not valid; use points@layers, such as attn_in,mlp_in@8,12,16"
        )
    layers: str | list[int] = typed.strip()
    if layers != "all" and ":" not in layers:
        try:
            layers = [int(part) for part in _names(typed)]
        except ValueError:
            raise InvalidRequest(
                f"capture: layers {typed!r} are not valid; use all, a slice such as 8:20:4, or 8,12,16"
            ) from None
    return {name: part for name, part in (("points", points), ("hooks", hooks), ("layers", layers)) if part}


def features_of(given: int | str | Sequence[int] | Fields) -> dict[str, Any]:
    """Return columns as a spec: the first ones of `50` or `first:50`, those of `1,5,9` by number, or those of
    the heads of `heads:0,5`.

    Raises:
        InvalidRequest: the text has another form.
    """
    if isinstance(given, Mapping | BaseModel):
        return dict(as_json(given))
    if isinstance(given, int):
        return {"first": given}
    if not isinstance(given, str):
        return {"indices": list(given)}
    before, colon, listed = given.rpartition(":")
    try:
        numbers = [int(part) for part in _names(listed)]
    except ValueError:
        numbers = []
    is_first = len(numbers) == 1 and "," not in given
    if not numbers or (colon and before not in ("first", "heads")) or (before == "first" and not is_first):
        raise InvalidRequest(
            f"features: {given!r} is not valid; use 50 for the first 50 columns, 1,5,9 for these, or "
            "heads:0,5 for those of two heads",
            param="features",
        )
    if before == "heads":
        return {"heads": numbers}
    return {"first": numbers[0]} if is_first else {"indices": numbers}


def conditions_of(given: Conditions) -> list[dict[str, Any]]:
    """Return conditions as specs.

    A name that is repeated adds a field. A plain `baseline` precedes suffixes by name, unless they have one.

    Raises:
        InvalidRequest: a condition is invalid.
    """
    if isinstance(given, Mapping):
        suffixes = [{"name": name, "suffix": suffix} for name, suffix in given.items()]
        return suffixes if "baseline" in given else [{"name": "baseline"}, *suffixes]
    found: dict[str, dict[str, Any]] = {}
    for one in given:
        if not isinstance(one, str | Mapping | BaseModel):
            raise InvalidRequest(f"condition {one!r} is neither a text nor a spec", param="conditions")
        condition = _condition(one) if isinstance(one, str) else dict(as_json(one))
        if "interventions" in condition:
            condition["interventions"] = interventions_of(condition["interventions"])
        known = found.setdefault(condition.get("name", ""), {})
        sampling = known.get("sampling", {}) | condition.get("sampling", {})
        edits = [*known.get("interventions", ()), *condition.get("interventions", ())]
        known |= condition | ({"sampling": sampling} if sampling else {})
        known |= {"interventions": edits} if edits else {}
    return list(found.values())


def _condition(text: str) -> dict[str, Any]:
    """The condition of `NAME` or `NAME:FIELD=VALUE`."""
    name, colon, rest = text.partition(":")
    field, equals, value = rest.partition("=")
    if not name or (colon and not (equals and field in CONDITION_FIELDS)):
        known = ", ".join(CONDITION_FIELDS)
        raise InvalidRequest(f"condition {text!r} is not NAME or NAME:FIELD=VALUE, with a field of {known}")
    if field == "steer":
        return {"name": name, "interventions": [intervention_of(value)]}
    if field == "tools":
        return {"name": name, "tools": _tools(value)}
    if field not in _CONDITION_NUMBERS:
        return {"name": name} | ({field: value} if field else {})
    try:
        return {"name": name, "sampling": {field: _CONDITION_NUMBERS[field](value)}}
    except ValueError:
        raise InvalidRequest(f"condition {text!r}: {value!r} is not a number") from None


def interventions_of(given: str | Sequence[str | Fields]) -> list[dict[str, Any]]:
    """Return interventions as specs; texts are `VECTOR@HOOK*COEFFICIENT[@POSITIONS]`.

    Raises:
        InvalidRequest: a text has another form.
    """
    listed = [given] if isinstance(given, str) else given
    return [intervention_of(one) if isinstance(one, str) else as_json(one) for one in listed]


def intervention_of(text: str) -> dict[str, Any]:
    """The intervention of `VECTOR@HOOK*COEFFICIENT[@POSITIONS]`: add a stored vector to the rows of a hook.

    `*50%` adds half of each row's norm along the vector. The vector may be `sae:NAME:LATENT`.

    Raises:
        InvalidRequest: the text has another form.
    """
    found = _STEER.fullmatch(text)
    try:
        typed = found["coefficient"] if found else "0"
        coefficient = float(typed[:-1]) / 100 if typed.endswith("%") else float(typed)
    except ValueError:
        found = None
    if found is None:
        raise InvalidRequest(
            f"{text!r} is not VECTOR@HOOK*COEFFICIENT[@POSITIONS], such as truth@resid_post.12*4@generated, "
            "or *50% for half of each row's norm",
            param="interventions",
        )
    more = {"positions": found["positions"]} if found["positions"] else {}
    more |= {"scale_by": "row_norm"} if typed.endswith("%") else {}
    given = {"hook": found["hook"], "op": "add", "coefficient": coefficient}
    if latent := _LATENT.fullmatch(found["vector"]):
        return given | {"sae": latent["sae"], "latent": int(latent["latent"])} | more
    return given | {"vector_id": found["vector"]} | more


def sae_of(text: str) -> dict[str, Any]:
    """The entry of `capture.saes` of `NAME[@HOOK][:TOP]`. Raises InvalidRequest for another form."""
    found = _SAE.fullmatch(text)
    if found is None:
        raise InvalidRequest(
            f"{text!r} is not NAME[@HOOK][:TOP], such as res-8@resid_post.8:64", param="capture.saes"
        )
    given = {name: part for name, part in found.groupdict().items() if part is not None}
    return given | ({"top": int(given["top"])} if "top" in given else {})


def readout_of(text: str) -> dict[str, Any]:
    """The entry of `capture.readouts` of `VECTOR[@HOOK]`. Raises InvalidRequest for another form."""
    found = _READOUT.fullmatch(text)
    if found is None:
        raise InvalidRequest(
            f"{text!r} is not VECTOR[@HOOK], such as truth@resid_post.20", param="capture.readouts"
        )
    return {name: part for name, part in found.groupdict().items() if part is not None}


def sessions_of(given: Fields | Sequence[str]) -> dict[str, Any]:
    """Return the query of ids of jobs, or of sessions; a query stays as it is."""
    if isinstance(given, Mapping | BaseModel):
        return dict(as_json(given))
    sessions = [one for one in given if one.startswith("ses_")]
    # the service refuses a mixture
    fields = {"ids": sessions, "jobs": [one for one in given if not one.startswith("ses_")]}
    return {name: named for name, named in fields.items() if named} or {"jobs": []}


def inputs_of(prompts: Prompts) -> list[dict[str, Any]]:
    """Return prompts and conversations as inputs of a capture job; inputs stay as they are."""
    return [_input(one) for one in ([prompts] if isinstance(prompts, str) else prompts)]


def _input(given: str | Sequence[Mapping[str, str]] | Mapping[str, Any] | BaseModel) -> dict[str, Any]:
    if isinstance(given, str):
        return {"prompt": given}
    if isinstance(given, Mapping | BaseModel):
        return dict(as_json(given))
    return {"messages": list(given)}


def _tools(given: Tools) -> Tools:
    """A tool, or several of `calculator,weather`."""
    found = _names(given) if isinstance(given, str) else list(given)
    return found[0] if len(found) == 1 else found


def _names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _dataset(given: Dataset, option: str) -> tuple[dict[str, Any], Path | None]:
    """Return the dataset of a job spec, and the file to upload first, if any. Raises InvalidRequest."""
    if not isinstance(given, str | Path):
        return dict(as_json(given)), None
    typed = str(given)
    scheme, _, rest = typed.partition(":")
    if typed.startswith("file_"):
        return {"file_id": typed}, None
    if scheme == "path" and rest:
        return {"path": rest}, None
    if scheme == "hub" and rest:
        parts = zip(("hub", "config", "split"), rest.split(":", 2), strict=False)
        return {name: part for name, part in parts if part}, None
    if not Path(typed).is_file():
        raise InvalidRequest(f"{option}: no file {typed!r}")
    return {"file_id": _UNSENT_FILE}, Path(typed)


def _datasets_of(task: Any, *, fewshot: bool) -> dict[str, Any]:
    """Return lm-eval's datasets for a built-in task; {} for other tasks."""
    if task not in get_args(TaskName):
        return {}
    datasets = {"dataset": {"hub": "openai/gsm8k", "config": "main", "split": "test"}}
    return datasets | ({"fewshot_dataset": datasets["dataset"] | {"split": "train"}} if fewshot else {})


def _task_of(path: Path) -> dict[str, Any]:
    """Return the options `task` and `dataset` (if it names one) of a task file.

    Raises:
        InvalidRequest, OSError: the file cannot be used.
    """
    try:
        fields = read_task_file(path.read_bytes())
    except InvalidRequest as error:
        raise InvalidRequest(f"{path}: {error.message}") from None
    dataset = fields.pop("dataset", None)
    task_from(fields)
    found = {"task": fields, "dataset": path.parent / dataset if isinstance(dataset, str) else dataset}
    return {name: value for name, value in found.items() if value is not None}
