"""Options of `client.evaluate`, `client.capture` and `client.extract`, and the job that they describe."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

from actograph.contract.errors import InvalidRequest
from actograph.job_requests.assembly import JobRequest, assemble
from actograph.job_requests.conditions import conditions_of
from actograph.job_requests.parts import Part, plain

#: a prompt, or the messages of a conversation
Prompt = str | Sequence[Mapping[str, str]]

_SAMPLING = ("max_tokens", "temperature", "top_p", "top_k", "seed")


class JobOptions(TypedDict, total=False):
    """Options of every job. Those left out have the defaults of the job spec."""

    #: by default the only served model
    model: str
    #: activations to store: `POINTS@LAYERS`, such as `resid_post@all` or `attn_in,mlp_in@8,12`, or a spec
    capture: str | Part
    #: changes of the activations, in the order of their application
    interventions: Sequence[Part]
    #: names, `NAME:FIELD=VALUE`, or condition objects; the first is the baseline
    conditions: Sequence[str | Part]
    tags: Sequence[str]
    #: 0 runs first, 9 last
    priority: int
    #: seconds after which each session is deleted, or `never`
    expires_after: int | Literal["never"]
    enable_thinking: bool
    metadata: Mapping[str, str]


class GeneratingOptions(JobOptions, total=False):
    """Options of jobs that generate."""

    #: maximum number of generated tokens per sample
    max_tokens: int
    #: 0 is greedy
    temperature: float
    top_p: float
    top_k: int
    seed: int
    #: answers per prompt
    epochs: int


class EvaluationOptions(GeneratingOptions, total=False):
    """Options of `client.evaluate`."""

    #: a file to upload (JSONL, CSV or Parquet), `file_...`, `path:...`, `hub:OWNER/NAME[:CONFIG[:SPLIT]]`, or
    #: an object; by default that of the task
    dataset: str | Path | Part
    #: source of few-shot examples; by default the dataset
    fewshot_dataset: str | Path | Part
    num_fewshot: int
    #: maximum number of dataset rows
    limit: int
    #: dataset rows to skip
    offset: int
    #: names, or objects with a name and parameters; the first gives the verdict
    scorers: Sequence[str | Part]
    mode: Literal["no_tools", "with_tools"]
    tool_format: Literal["template", "annotations"]
    max_turns: int
    apply_chat_template: bool


class ExtractOptions(JobOptions, total=False):
    """Options of `client.extract`."""

    #: source of the texts, in place of a list; as in `client.evaluate`
    dataset: str | Path | Part
    #: column of the dataset with the texts
    text_field: str
    limit: int
    offset: int
    #: cut texts to the model's context
    truncate: bool


def evaluation(task: str | Path | Part, options: Mapping[str, Any]) -> JobRequest:
    """Return an evaluation of a task: its name, a YAML file, or a task object."""
    return _request("evaluation", {"task": task, **options})


def capture(prompts: Prompt | Sequence[Prompt], options: Mapping[str, Any]) -> JobRequest:
    """Return a job that generates from prompts and stores activations."""
    return _request("capture", {"inputs": inputs_of(prompts), **options})


def extract(texts: Prompt | Sequence[Prompt] | None, options: Mapping[str, Any]) -> JobRequest:
    """Return a job that reads texts, or a column of a dataset, and generates nothing."""
    if (texts is None) == (options.get("dataset") is None):
        raise InvalidRequest("give either texts or a dataset", param="inputs")
    return _request("extract", {"inputs": None if texts is None else inputs_of(texts), **options})


def inputs_of(prompts: Prompt | Sequence[Prompt]) -> list[dict[str, Any]]:
    """Return inputs of a job for one prompt or conversation, or for several."""
    listed: list[Any] = list(prompts)
    if isinstance(prompts, str) or (listed and isinstance(listed[0], Mapping)):
        listed = [prompts]
    return [
        {"prompt": one} if isinstance(one, str) else {"messages": [dict(said) for said in one]}
        for one in listed
    ]


def _request(kind: str, options: Mapping[str, Any]) -> JobRequest:
    fields: dict[str, Any] = {"kind": kind}
    for name, value in options.items():
        fields[f"sampling.{name}" if name in _SAMPLING else name] = plain(value)
    if "conditions" in options:
        fields["conditions"] = conditions_of(options["conditions"], None)
    if isinstance(options.get("expires_after"), int):
        fields["expires_after"] = {"seconds": options["expires_after"]}
    return assemble(fields)
