"""Specs: job specs, sampling, capture and dataset references of clients.

All fields but `kind`, `model` and the inputs have a default. Unknown fields are refused,
so that a misspelt option is an error and not a silent default.
"""

from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from actograph.contract.base import (
    MAX_PROMPT_CHARS,
    MAX_TAGS,
    Name,
    PromptText,
    Spec,
    Tag,
    Text,
    canonical_digest,
)
from actograph.contract.specs.analysis.compare import CompareSpec
from actograph.contract.specs.analysis.lens import LensSpec
from actograph.contract.specs.analysis.outliers import OutliersSpec
from actograph.contract.specs.analysis.probe import ProbeSpec
from actograph.contract.specs.analysis.source import ANALYSIS_QUEUE, AnalysisSpec
from actograph.contract.specs.capture import CaptureSpec, Dtype, ExtractCaptureSpec, LayerIndex, Layers
from actograph.contract.specs.changes import PauseRequest, SessionUpdate
from actograph.contract.specs.conditions import CaptureCondition, Condition, Mode
from actograph.contract.specs.datasets import (
    DatasetFormat,
    DatasetRef,
    FileDataset,
    Format,
    HubDataset,
    PathDataset,
)
from actograph.contract.specs.evaluation import EvaluationSpec, ToolForm, ToolName
from actograph.contract.specs.input_jobs import (
    MAX_INPUTS,
    CaptureInput,
    CaptureJobSpec,
    ExtractSpec,
    InputJobSpec,
    Message,
)
from actograph.contract.specs.job_base import (
    MAX_EXPIRY_SECONDS,
    ExpiresAfter,
    GeneratingSpec,
    JobSpecBase,
    QueuedSpec,
)
from actograph.contract.specs.sampling import LogitBias, Penalty, SamplingChange, SamplingSpec, sample_seed

#: specs of jobs that run a model
AnyJobSpec = EvaluationSpec | CaptureJobSpec | ExtractSpec
#: specs of jobs that read stored activations
AnyAnalysisSpec = OutliersSpec | ProbeSpec | CompareSpec | LensSpec
#: values of `kind`
JOB_KINDS = ("evaluation", "capture", "extract")
ANALYSIS_KINDS = ("outliers", "probe", "compare", "lens")
JobSpec = Annotated[AnyJobSpec, Field(discriminator="kind")]
job_spec_adapter: TypeAdapter[AnyJobSpec] = TypeAdapter(JobSpec)
#: every job that a client may submit
SubmittedSpec = AnyJobSpec | AnyAnalysisSpec
submitted_spec_adapter: TypeAdapter[SubmittedSpec] = TypeAdapter(
    Annotated[SubmittedSpec, Field(discriminator="kind")]
)


def job_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of the jobs that a client may submit."""
    found = submitted_spec_adapter.json_schema(ref_template="#/$defs/{model}")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "Actograph job", **found}


__all__ = [
    "ANALYSIS_KINDS",
    "ANALYSIS_QUEUE",
    "JOB_KINDS",
    "MAX_EXPIRY_SECONDS",
    "MAX_INPUTS",
    "MAX_PROMPT_CHARS",
    "MAX_TAGS",
    "AnalysisSpec",
    "AnyAnalysisSpec",
    "AnyJobSpec",
    "CaptureCondition",
    "CaptureInput",
    "CaptureJobSpec",
    "CaptureSpec",
    "CompareSpec",
    "Condition",
    "DatasetFormat",
    "DatasetRef",
    "Dtype",
    "EvaluationSpec",
    "ExpiresAfter",
    "ExtractCaptureSpec",
    "ExtractSpec",
    "FileDataset",
    "Format",
    "GeneratingSpec",
    "HubDataset",
    "InputJobSpec",
    "JobSpec",
    "JobSpecBase",
    "LayerIndex",
    "Layers",
    "LensSpec",
    "LogitBias",
    "Message",
    "Mode",
    "Name",
    "OutliersSpec",
    "PathDataset",
    "PauseRequest",
    "Penalty",
    "ProbeSpec",
    "PromptText",
    "QueuedSpec",
    "SamplingChange",
    "SamplingSpec",
    "SessionUpdate",
    "Spec",
    "SubmittedSpec",
    "Tag",
    "Text",
    "ToolForm",
    "ToolName",
    "canonical_digest",
    "job_schema",
    "job_spec_adapter",
    "sample_seed",
    "submitted_spec_adapter",
]
