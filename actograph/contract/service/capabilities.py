"""Capabilities of a service, derived from the contract."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, Field

from actograph.contract import hooks, interventions, row_selection, scorers, specs, tasks
from actograph.contract.resources import Model, Resource


class CaptureCapabilities(Resource):
    """Values of a capture spec's fields."""

    points: list[str]
    positions: list[str] = Field(description="Names; token numbers and strides are accepted too.")
    segments: list[str]
    reduce: list[str]
    dtypes: list[str]
    modes: list[str]
    fields: list[str] = Field(description="All fields of a capture spec.")


class InterventionCapabilities(Resource):
    ops: list[str]
    positions: list[str] = Field(description="Names; token ranges are accepted too.")


class EvaluationCapabilities(Resource):
    tasks: list[str] = Field(description="Built-in tasks; your own tasks are accepted too.")
    scorers: list[str]
    modes: list[str]
    tools: list[str]
    tool_formats: list[str]


class Limits(Resource):
    """Sizes are bytes; 0 is no limit."""

    max_upload_bytes: int
    max_body_bytes: int
    store_quota_bytes: int
    owner_quota_bytes: int
    inputs_per_job: int = specs.MAX_INPUTS
    samples_per_job: int
    prompt_characters: int = specs.MAX_PROMPT_CHARS


class Features(Resource):
    """Configuration of the service."""

    database: Literal["sqlite", "postgres"]
    artifacts: Literal["files", "s3"]
    authentication: bool = Field(description="True if clients need a key.")
    webhooks: bool = Field(description="True if jobs may have a webhook.")
    model_switching: bool = Field(description="True if workers load other models for jobs.")


class Capabilities(Resource):
    object: Literal["capabilities"] = "capabilities"
    version: str
    models: list[Model]
    job_kinds: list[str]
    capture: CaptureCapabilities
    interventions: InterventionCapabilities
    evaluation: EvaluationCapabilities
    limits: Limits
    features: Features
    openai_endpoints: list[str] = Field(description="OpenAI-compatible paths.")
    endpoints: list[str] = Field(description="`METHOD path` of every route; /openapi.json has the schemas.")


def of_contract() -> dict[str, Any]:
    """The capabilities that all services of this version share."""
    capture, evaluation = specs.CaptureSpec.model_fields, specs.EvaluationSpec.model_fields
    return {
        "job_kinds": list(specs.JOB_KINDS),
        "capture": CaptureCapabilities(
            points=list(hooks.POINTS),
            positions=names(row_selection.NamedRows),
            segments=names(row_selection.Segment),
            reduce=names(capture["reduce"].annotation),
            dtypes=names(capture["dtype"].annotation),
            modes=names(capture["mode"].annotation),
            fields=list(capture),
        ),
        "interventions": InterventionCapabilities(
            ops=names(interventions.Op), positions=names(interventions.NamedPositions)
        ),
        "evaluation": EvaluationCapabilities(
            tasks=names(tasks.TaskName),
            scorers=[name for scorer in get_args(scorers.AnyScorer) for name in _scorer_names(scorer)],
            modes=names(evaluation["mode"].annotation),
            tools=names(evaluation["tools"].annotation),
            tool_formats=names(evaluation["tool_format"].annotation),
        ),
    }


def names(annotation: Any) -> list[str]:
    """All strings of a Literal type, also within other types."""
    return list(dict.fromkeys(_names(annotation)))


def _names(annotation: Any) -> Iterator[str]:
    if get_origin(annotation) is Literal:
        yield from (value for value in get_args(annotation) if isinstance(value, str))
        return
    # the rest of an Annotated is validators
    members = get_args(annotation)[:1] if get_origin(annotation) is Annotated else get_args(annotation)
    for member in members:
        yield from _names(member)


def _scorer_names(scorer: type[BaseModel]) -> list[str]:
    return names(scorer.model_fields["name"].annotation)
