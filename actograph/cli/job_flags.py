"""A job from a file and from flags, which override the file. For `jobs submit`, `eval` and `estimate`."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from actograph.cli.flags import ScorersOption, model_with, scorers_of
from actograph.contract.errors import InvalidRequest
from actograph.contract.suggestions import did_you_mean

if TYPE_CHECKING:
    from actograph.contract.job_options import Draft

_DATASET = (
    "File to upload (JSONL, CSV or Parquet), id of an uploaded file (file_...), path:... under a data root "
    "of the service, or hub:OWNER/NAME[:CONFIG[:SPLIT]]."
)
_CONDITION = (
    "Condition: `plain`, `EP02:suffix=This matters.` or `calc:tools=calculator`. Repeat for more; the first "
    "is the baseline. Fields: system prefix suffix tools steer temperature top_p top_k."
)
_CONDITIONS = (
    'JSON file with a list of conditions, or {"stimuli": {NAME: TEXT}, "field": "suffix"}; the field may be '
    "prefix or system too."
)
STEER = (
    "VECTOR@HOOK*COEFFICIENT[@POSITIONS]: add a stored vector, by name or id, such as "
    "truth@resid_post.12*4@generated; *15% adds that share of each row's norm. Repeat for more."
)
#: parts of the prompt that the texts of a stimuli file can be
_STIMULUS_FIELDS = ("suffix", "prefix", "system")
#: flag -> type, option of `client.evaluate` and `client.capture`, and help
_FLAGS: dict[str, tuple[Any, str, str]] = {
    "kind": (str, "kind", "evaluation, capture or replay; others in a spec file."),
    "model": (str, "model", "Default: the only served model; of a replay, that of its sessions."),
    "adapter": (str, "", "LoRA of --model that the service serves, by folder, Hub id or name."),
    "task": (str, "task", "gsm8k, another task, or a YAML file."),
    "dataset": (str, "dataset", _DATASET),
    "fewshot_dataset": (str, "fewshot_dataset", "Source of few-shot examples. Default: the dataset."),
    "prompt": (list[str], "inputs", "Prompt of a capture job. Repeat for more."),
    "sessions": (list[str], "sessions", "Job whose sessions are replayed, or a session. Repeat for more."),
    "tolerance": (
        float,
        "tolerance",
        "Largest difference of a replay's rows, as a share of the largest value.",
    ),
    "text_field": (str, "text_field", "Dataset field with the prompts of a capture job."),
    "limit": (int, "limit", "Maximum number of dataset rows."),
    "offset": (int, "offset", "Dataset rows to skip."),
    "num_fewshot": (int, "num_fewshot", "Number of few-shot examples."),
    "epochs": (int, "epochs", "Answers per problem."),
    "tools": (str, "tools", "none, calculator, or tools of the service's operator (commas)."),
    "tool_format": (str, "tool_format", "template (the model's own) or annotations (<<48/2=24>>)."),
    "max_turns": (int, "max_turns", "Maximum number of turns with tools."),
    "condition": (list[str], "conditions", _CONDITION),
    "conditions": (
        Path,
        "",
        'JSON file with a list of conditions, or {"stimuli": {NAME: TEXT}, "field": "suffix"}.',
    ),
    "steer": (list[str], "interventions", STEER),
    "thinking": (bool, "enable_thinking", "Let the model think."),
    "chat_template": (bool, "apply_chat_template", "Default: apply it if the model has one."),
    "capture": (
        str,
        "capture",
        "POINTS[@LAYERS], such as attn_in,mlp_in@8:20:4, or hooks: mlp_in.3; in a hook {i} stands for each "
        "layer.",
    ),
    "sae": (
        list[str],
        "saes",
        "NAME[@HOOK][:TOP]: store the TOP largest latents of each row by a stored SAE. Repeat for more.",
    ),
    "readout": (
        list[str],
        "readouts",
        "VECTOR[@HOOK]: store the inner product of each row with a stored vector. Repeat for more.",
    ),
    "positions": (str, "positions", "Tokens to store: generated, prompt[-3:], 0,-1, ... (default: all)"),
    "features": (
        str,
        "features",
        "Columns to store: 50 for the first 50, 1,5,9, or heads:0,5. (default: all)",
    ),
    "reduce": (str, "reduce", "Store one row per hook and sample: mean, max or last."),
    "stats": (bool, "stats", "Store statistics of each channel over the tokens."),
    "dtype": (str, "dtype", "Store as float32, float16, bfloat16, float8_e4m3fn, or model. (default: model)"),
    "mode": (str, "mode", "generate, or prefill: read the prompts and generate nothing."),
    "max_tokens": (int, "max_tokens", "Maximum number of generated tokens per sample."),
    "temperature": (float, "temperature", "0 is greedy."),
    "top_p": (float, "top_p", "Nucleus sampling probability."),
    "top_k": (int, "top_k", "Sample from the k likeliest tokens."),
    "seed": (int, "seed", "Seed of the job."),
    "engine": (str, "engine", "auto, streaming, or traced: under nnsight, as a reference."),
    "truncate": (bool, "truncate", "Mode prefill: cut texts to the model's context."),
    "priority": (int, "priority", "0 runs first, 9 last."),
    "tag": (list[str], "tags", "Tag. Repeat for more."),
    "expires_after": (str, "expires_after", "Delete each session after 12h, 7d, ..., or `never`."),
}


def job_options(without: Sequence[str] = ()) -> dict[str, Any]:
    """Annotations of the job flags, for `command`."""
    spec = Annotated[
        str | None,
        typer.Argument(metavar="SPEC.yaml|SPEC.json|-", help="Job; - reads JSON from stdin."),
    ]
    options: dict[str, Any] = {
        name: Annotated[kind | None, typer.Option(help=about)] for name, (kind, _, about) in _FLAGS.items()
    }
    options = {"spec": spec, **options, "scorer": ScorersOption}
    return {name: option for name, option in options.items() if name not in without}


def draft_of(**flags: Any) -> "Draft":
    """Return the job that the flags of `job_options` describe.

    Raises:
        InvalidRequest: a file that does not hold an object, or an invalid flag.
        OSError: a file cannot be read.
    """
    from actograph.contract.job_options import draft

    typed = {name: value for name, value in flags.items() if value not in (None, [])}
    body = _read_spec(typed["spec"]) if "spec" in typed else {}
    options = {option: typed[name] for name, (_, option, _) in _FLAGS.items() if option and name in typed}
    if "adapter" in typed:
        options["model"] = model_with(options.get("model"), typed["adapter"])
    if "scorer" in typed:
        options["scorers"] = scorers_of(typed["scorer"])
    if "conditions" in typed:
        options["conditions"] = _conditions(typed.get("condition", []), typed["conditions"])
    return draft(options, body)


def _conditions(typed: list[str], file: Path) -> list[Any]:
    """Return the conditions of `--condition`, then those of `--conditions`. Raises InvalidRequest."""
    from actograph.contract.job_options import conditions_of

    content = _read_json(str(file))
    if isinstance(content, dict) and isinstance(content.get("stimuli"), dict):
        place = content.get("field", "suffix")
        if place not in _STIMULUS_FIELDS:
            raise InvalidRequest(
                f"{file}: unknown field {place!r}{did_you_mean(str(place), _STIMULUS_FIELDS)}", param="field"
            )
        stimuli = conditions_of(content["stimuli"])
        content = [
            {place if name == "suffix" else name: value for name, value in one.items()} for one in stimuli
        ]
        if typed and content[0] == {"name": "baseline"}:
            del content[0]
    if not isinstance(content, list):
        raise InvalidRequest(f'{file}: use a list of conditions, or {{"stimuli": {{NAME: TEXT}}}}')
    return [*typed, *content]


def _read_spec(source: str) -> dict[str, Any]:
    """Read a job from a YAML or JSON file, or from standard input for `-`. Raises InvalidRequest, OSError."""
    if source.endswith((".yaml", ".yml")):
        from actograph.contract.task_files import read_mapping

        return read_mapping(Path(source).read_bytes(), source)
    found = _read_json(source)
    if not isinstance(found, dict):
        raise InvalidRequest(f"{source} is not a JSON object")
    return found


def _read_json(source: str) -> Any:
    """Read a JSON file, or standard input for `-`. Raises InvalidRequest and OSError."""
    text = sys.stdin.read() if source == "-" else Path(source).read_text(encoding="utf-8")
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidRequest(f"{source} is not JSON: {error}") from error
