"""Flags that describe a job, shared by `jobs submit`, `eval run` and `estimate`."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from actograph.cli.flags import dataset_flags, scorer_flags
from actograph.cli.flags.durations import NEVER, seconds_of
from actograph.contract.errors import InvalidRequest


class Flag(NamedTuple):
    """A flag and the field of a job spec that it sets."""

    annotation: Any
    #: a dot leads into a nested object; None is handled by `job_spec.body_of`
    field: str | None
    convert: Callable[[Any], Any]


def _flag(
    kind: Any,
    field: str | None,
    about: str,
    *names: str,
    convert: Callable[[Any], Any] = lambda value: value,
    **options: Any,
) -> Flag:
    return Flag(Annotated[kind | None, typer.Option(*names, help=about, **options)], field, convert)


def parse_layers(text: str) -> list[int] | str:
    """Parse `all`, a slice such as `8:20:4`, or a list such as `8,12,16`.

    Raises:
        InvalidRequest: `text` is none of these.
    """
    if text == "all" or ":" in text:
        return text
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InvalidRequest(
            f"--capture: layers {text!r} are not valid; use all, a slice such as 8:20:4, or numbers: 8,12,16"
        ) from None


def names(values: Sequence[str]) -> list[str] | None:
    """Split values at commas; None if there are none."""
    found = [part.strip() for value in values for part in value.split(",") if part.strip()]
    return found or None


def _expiry(typed: str) -> dict[str, int] | str:
    return typed if typed == NEVER else {"seconds": seconds_of(typed, "--expires-after")}


_SPEC = Annotated[str | None, typer.Argument(metavar="SPEC.json|-", help="Job as JSON; - reads stdin.")]

#: parameter -> flag, in the order of `--help`
JOB_FLAGS: dict[str, Flag] = {
    "spec": Flag(_SPEC, None, str),
    "kind": _flag(str, "kind", "evaluation or capture."),
    "model": _flag(str, "model", "Default: the only served model."),
    "task": _flag(str, "task", "gsm8k, another task, or a YAML file."),
    "dataset": _flag(str, "dataset", dataset_flags.HELP, metavar=dataset_flags.METAVAR),
    "fewshot_dataset": _flag(
        str, "fewshot_dataset", "Source of few-shot examples. Default: the dataset.",
        metavar=dataset_flags.METAVAR,
    ),
    "prompt": _flag(
        list[str], "inputs", "Prompt of a capture job. Repeat for more.",
        convert=lambda prompts: [{"prompt": text} for text in prompts],
    ),
    "text_field": _flag(str, "text_field", "Dataset field with the prompts of a capture job."),
    "limit": _flag(int, "limit", "Maximum number of dataset rows."),
    "offset": _flag(int, "offset", "Dataset rows to skip."),
    "num_fewshot": _flag(int, "num_fewshot", "Number of few-shot examples."),
    "epochs": _flag(int, "epochs", "Answers per problem."),
    "tools": _flag(str, "tools", "none or calculator."),
    "tool_format": _flag(
        str, "tool_format", "template (the model's own) or annotations (<<48/2=24>>)."
    ),
    "max_turns": _flag(int, "max_turns", "Maximum number of turns with tools."),
    "condition": _flag(
        list[str], None,
        "Condition: `plain`, `EP02:suffix=This matters.`, `calc:tools=calculator`, or JSON. Repeat for more; "
        "the first is the baseline. Fields: system prefix suffix tools temperature top_p top_k.",
        metavar="NAME[:FIELD=VALUE]",
    ),
    "conditions": _flag(
        Path, None, 'File with conditions: a list, or {"stimuli": {NAME: SUFFIX}}.', metavar="FILE.json"
    ),
    "scorer": Flag(scorer_flags.ScorerOption, "scorers", scorer_flags.as_sent),
    "thinking": _flag(bool, "enable_thinking", "Let the model think.", "--thinking/--no-thinking"),
    "chat_template": _flag(
        bool, "apply_chat_template", "Default: apply it if the model has one.",
        "--chat-template/--no-chat-template",
    ),
    "capture": _flag(
        str, None, "Hook points at layers, such as attn_in,mlp_in@8:20:4, or hooks by name: mlp_in.3.",
        metavar="POINTS[@LAYERS]",
    ),
    "mode": _flag(str, "capture.mode", "generate, or prefill: read the prompts and generate nothing."),
    "max_tokens": _flag(int, "sampling.max_tokens", "Maximum number of generated tokens per sample."),
    "temperature": _flag(float, "sampling.temperature", "0 is greedy."),
    "top_p": _flag(float, "sampling.top_p", "Nucleus sampling probability."),
    "top_k": _flag(int, "sampling.top_k", "Sample from the k likeliest tokens."),
    "seed": _flag(int, "sampling.seed", "Seed of the job."),
    "truncate": _flag(
        bool, "truncate", "Mode prefill: cut texts to the model's context.", "--truncate/--no-truncate"
    ),
    "priority": _flag(int, "priority", "0 runs first, 9 last."),
    "tag": _flag(list[str], "tags", "Tag. Repeat for more.", convert=list),
    "expires_after": _flag(
        str, "expires_after", "Delete each session after 12h, 7d, ..., or `never`.", convert=_expiry,
        metavar="SPAN",
    ),
}  # fmt: skip


def job_options(without: Sequence[str] = ()) -> dict[str, Any]:
    """Annotations of the job flags, for `add_flags`."""
    return {name: flag.annotation for name, flag in JOB_FLAGS.items() if name not in without}
