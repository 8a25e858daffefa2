"""Capabilities of a service, derived from the contract."""

from typing import Any, Literal, get_args

from pydantic import Field

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
    capture = specs.CaptureSpec.model_fields
    return {
        "job_kinds": list(specs.JOB_KINDS),
        "capture": CaptureCapabilities(
            points=list(hooks.POINTS),
            positions=list(get_args(row_selection.NamedPositions)),
            segments=list(get_args(row_selection.Segment)),
            reduce=list(get_args(row_selection.Reduce)),
            dtypes=list(get_args(specs.Dtype)),
            modes=list(get_args(capture["mode"].annotation)),
            fields=list(capture),
        ),
        "interventions": InterventionCapabilities(
            ops=list(get_args(interventions.Op)),
            positions=[name for name in get_args(row_selection.NamedPositions) if name != "last"],
        ),
        "evaluation": EvaluationCapabilities(
            tasks=list(get_args(tasks.TaskName)),
            scorers=list(scorers.SCORER_NAMES),
            tools=list(get_args(specs.Tools)),
            tool_formats=list(get_args(specs.ToolForm)),
        ),
    }
