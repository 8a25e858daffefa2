"""The capture job."""

from typing import Literal

from pydantic import Field

from actograph.contract.specs.inputs import MAX_INPUTS, CaptureInput, InputJobSpec
from actograph.contract.specs.job_base import GeneratingSpec, SampleTimeout


class CaptureJobSpec(InputJobSpec, GeneratingSpec):
    """Generate from prompts or conversations and keep the activations."""

    kind: Literal["capture"]
    inputs: list[CaptureInput] = Field(min_length=1, max_length=MAX_INPUTS)
    sample_timeout_seconds: SampleTimeout = None
