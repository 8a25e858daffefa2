"""What every kind of job has, and what every one that generates has."""

from typing import Annotated, Literal

from pydantic import Field

from actograph.contract.interventions import InterventionList
from actograph.contract.specs.base import MAX_TAGS, Spec, Tag
from actograph.contract.specs.capture import CaptureSpec
from actograph.contract.specs.sampling import SamplingSpec
from actograph.contract.webhooks import WebhookSpec

SampleTimeout = Annotated[
    float | None,
    Field(
        ge=0,
        le=366 * 86400.0,
        allow_inf_nan=False,
        description="A sample that is decoded for longer fails; null: the service's default, 0: never. All "
        "samples of a batch are decoded at the same time.",
    ),
]


MAX_EXPIRY_SECONDS = 100 * 366 * 24 * 3600


class ExpiresAfter(Spec):
    """When sessions or files are deleted: so many seconds after each of them was created (`anchor`)."""

    anchor: Literal["created_at"] = "created_at"
    seconds: int = Field(ge=1, le=MAX_EXPIRY_SECONDS)


class JobSpecBase(Spec):
    """What every kind of job has."""

    model: str = Field(min_length=1, max_length=1024)
    capture: CaptureSpec | None = None
    interventions: InterventionList = Field(
        default_factory=list, description="Changes of the activations, in the order in which they apply."
    )
    priority: int = Field(5, ge=0, le=9, description="0 is served first, 9 last.")
    max_consecutive_failures: int | None = Field(
        None,
        ge=0,
        le=1_000_000,
        description="The job stops when so many samples failed one after the other; null: the service's "
        "default, 0: never.",
    )
    deadline_seconds: float | None = Field(
        None,
        gt=0,
        le=10 * 366 * 86400.0,
        description="The job fails if it has not ended so long after it was submitted or retried; waiting "
        "counts. null: never.",
    )
    tags: list[Tag] = Field(default_factory=list, max_length=MAX_TAGS)
    expires_after: ExpiresAfter | Literal["never"] | None = Field(
        None, description="When its sessions are deleted; null takes the service's own default."
    )
    metadata: dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]] = Field(
        default_factory=dict, max_length=16
    )
    webhook: WebhookSpec | None = Field(
        None, description="Who is told when it ends, see docs/webhooks.md; null: the service's default."
    )

    @property
    def is_prefill(self) -> bool:
        """Whether prompts are only read, and nothing is generated."""
        return self.capture is not None and self.capture.mode == "prefill"

    @property
    def max_tokens(self) -> int:
        """Most tokens that a sample generates."""
        return 0


class GeneratingSpec(JobSpecBase):
    """A job that generates, or can."""

    sampling: SamplingSpec = Field(default_factory=SamplingSpec)
    epochs: int = Field(1, ge=1, le=1000, description="Times that every sample is run.")

    @property
    def max_tokens(self) -> int:
        return 0 if self.is_prefill else self.sampling.max_tokens
