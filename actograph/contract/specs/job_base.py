"""Fields of all jobs, and of all jobs that generate."""

from typing import Literal

from pydantic import Field

from actograph.contract.base import MAX_TAGS, Metadata, Spec, Tag
from actograph.contract.interventions import InterventionList
from actograph.contract.specs.capture import CaptureSpec
from actograph.contract.specs.sampling import SamplingSpec

MAX_EXPIRY_SECONDS = 100 * 366 * 24 * 3600


class ExpiresAfter(Spec):
    """Expiry of sessions or files: `seconds` after their creation (`anchor`)."""

    anchor: Literal["created_at"] = Field("created_at", description="Start of the time.")
    seconds: int = Field(ge=1, le=MAX_EXPIRY_SECONDS)


class JobSpecBase(Spec):
    """Fields of all jobs."""

    model: str = Field(min_length=1, max_length=1024, description="A served model.")
    capture: CaptureSpec | None = Field(
        None, description="Activations to keep; null keeps texts and scores only."
    )
    interventions: InterventionList = Field(
        default_factory=list, description="Changes of the activations, in the order of their application."
    )
    priority: int = Field(5, ge=0, le=9, description="0 is served first, 9 last.")
    max_consecutive_failures: int | None = Field(
        None,
        ge=0,
        le=1_000_000,
        description="The job stops after this many consecutive failed samples; null uses the service's "
        "default, 0 never stops it.",
    )
    deadline_seconds: float | None = Field(
        None,
        gt=0,
        le=10 * 366 * 86400.0,
        description="The job fails if it has not ended this long after its submission or retry, including "
        "the time in the queue; null is no limit.",
    )
    tags: list[Tag] = Field(
        default_factory=list, max_length=MAX_TAGS, description="Tags of the job and its sessions."
    )
    expires_after: ExpiresAfter | Literal["never"] | None = Field(
        None, description="Expiry of its sessions; null uses the service's default."
    )
    metadata: Metadata = Field(default_factory=dict, description="Your own keys and values.")

    @property
    def is_prefill(self) -> bool:
        """True if the job reads prompts and generates nothing."""
        return self.capture is not None and self.capture.mode == "prefill"

    @property
    def max_tokens(self) -> int:
        """Maximum of generated tokens per sample."""
        return 0


class GeneratingSpec(JobSpecBase):
    """Fields of all jobs that can generate."""

    sampling: SamplingSpec = Field(default_factory=SamplingSpec, description="Choice of tokens.")
    epochs: int = Field(1, ge=1, le=1000, description="Number of runs of each sample.")
    sample_timeout_seconds: float | None = Field(
        None,
        ge=0,
        le=366 * 86400.0,
        allow_inf_nan=False,
        description="Maximum decoding time of a sample; null uses the service's default, 0 is no limit. All "
        "samples of a batch are decoded at the same time.",
    )

    @property
    def max_tokens(self) -> int:
        return 0 if self.is_prefill else self.sampling.max_tokens
