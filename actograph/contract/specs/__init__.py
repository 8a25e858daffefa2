"""Specs: job specs, sampling, capture and dataset references of clients.

All fields but `kind`, `model` and the inputs have a default. Unknown fields are refused,
so that a misspelt option is an error and not a silent default.
"""

from typing import Annotated

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
from actograph.contract.specs.capture import CaptureSpec, Dtype, LayerIndex, Layers
from actograph.contract.specs.changes import PauseRequest, SessionUpdate
from actograph.contract.specs.conditions import CaptureCondition, Condition, Tools
from actograph.contract.specs.datasets import (
    DatasetFormat,
    DatasetRef,
    FileDataset,
    Format,
    HubDataset,
    PathDataset,
)
from actograph.contract.specs.evaluation import EvaluationSpec, ToolForm
from actograph.contract.specs.input_jobs import (
    MAX_INPUTS,
    CaptureInput,
    CaptureJobSpec,
    InputJobSpec,
    Message,
)
from actograph.contract.specs.job_base import (
    MAX_EXPIRY_SECONDS,
    ExpiresAfter,
    GeneratingSpec,
    JobSpecBase,
)
from actograph.contract.specs.sampling import LogitBias, Penalty, SamplingChange, SamplingSpec, sample_seed

AnyJobSpec = EvaluationSpec | CaptureJobSpec
#: values of `kind`
JOB_KINDS = ("evaluation", "capture")
JobSpec = Annotated[AnyJobSpec, Field(discriminator="kind")]
job_spec_adapter: TypeAdapter[AnyJobSpec] = TypeAdapter(JobSpec)

__all__ = [
    "JOB_KINDS",
    "MAX_EXPIRY_SECONDS",
    "MAX_INPUTS",
    "MAX_PROMPT_CHARS",
    "MAX_TAGS",
    "AnyJobSpec",
    "CaptureCondition",
    "CaptureInput",
    "CaptureJobSpec",
    "CaptureSpec",
    "Condition",
    "DatasetFormat",
    "DatasetRef",
    "Dtype",
    "EvaluationSpec",
    "ExpiresAfter",
    "FileDataset",
    "Format",
    "GeneratingSpec",
    "HubDataset",
    "InputJobSpec",
    "JobSpec",
    "JobSpecBase",
    "LayerIndex",
    "Layers",
    "LogitBias",
    "Message",
    "Name",
    "PathDataset",
    "PauseRequest",
    "Penalty",
    "PromptText",
    "SamplingChange",
    "SamplingSpec",
    "SessionUpdate",
    "Spec",
    "Tag",
    "Text",
    "ToolForm",
    "Tools",
    "canonical_digest",
    "job_spec_adapter",
    "sample_seed",
]
