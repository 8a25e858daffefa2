"""What a service can do, read off the contract itself, so that the two cannot differ."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, Field

from actograph.contract import hooks, interventions, row_selection, scorers, specs, tasks
from actograph.contract.resources import Model, Resource


class CaptureCapabilities(Resource):
    """Values of a capture spec's fields."""

    points: list[str]
    positions: list[str] = Field(description="The names; lists of token numbers and strides besides.")
    segments: list[str]
    reduce: list[str]
    dtypes: list[str]
    modes: list[str]
    fields: list[str] = Field(description="Every field of a capture spec.")


class InterventionCapabilities(Resource):
    ops: list[str]
    positions: list[str] = Field(description="The names; token ranges besides.")


class EvaluationCapabilities(Resource):
    tasks: list[str] = Field(description="Tasks that come along; tasks of one's own besides.")
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
    """How the service was set up."""

    database: Literal["sqlite", "postgres"]
    artifacts: Literal["files", "s3"]
    authentication: bool = Field(description="Whether clients need a key.")
    webhooks: bool = Field(description="Whether jobs may name a webhook.")
    model_switching: bool = Field(description="Whether workers change their model for a job.")


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
    openai_endpoints: list[str] = Field(description="Paths at which OpenAI's clients are served.")
    endpoints: list[str] = Field(description="`METHOD path` of everything; /openapi.json has the schemas.")


def of_contract() -> dict[str, Any]:
    """The parts of `Capabilities` that every service of this version has."""
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
    """Every string that a type of literals allows."""
    return list(dict.fromkeys(_names(annotation)))


def _names(annotation: Any) -> Iterator[str]:
    if get_origin(annotation) is Literal:
        yield from (value for value in get_args(annotation) if isinstance(value, str))
        return
    # the rest of an Annotated says how a value is checked
    members = get_args(annotation)[:1] if get_origin(annotation) is Annotated else get_args(annotation)
    for member in members:
        yield from _names(member)


def _scorer_names(scorer: type[BaseModel]) -> list[str]:
    return names(scorer.model_fields["name"].annotation)
