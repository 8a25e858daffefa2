"""Sampling of tokens, and the seed of a sample."""

from hashlib import sha256
from typing import Annotated

from pydantic import Field

from actograph.contract.base import Spec

#: maximum number of entries in `logit_bias`
MAX_BIASED = 1024

Penalty = Annotated[float, Field(ge=-2.0, le=2.0, allow_inf_nan=False)]
LogitBias = Annotated[
    dict[
        Annotated[int, Field(ge=0, lt=2**31)],
        Annotated[float, Field(ge=-100.0, le=100.0, allow_inf_nan=False)],
    ],
    Field(max_length=MAX_BIASED),
]


class SamplingSpec(Spec):
    """Sampling of tokens. Temperature 0 is greedy decoding."""

    temperature: float = Field(0.0, ge=0.0, le=100.0, allow_inf_nan=False)
    top_p: float = Field(1.0, gt=0.0, le=1.0)
    top_k: int | None = Field(
        None, ge=1, description="Sample from the k most likely tokens; null samples from all."
    )
    max_tokens: int = Field(512, ge=1, le=1_000_000, description="Maximum of generated tokens per sample.")
    seed: int = Field(
        0, ge=0, lt=2**63, description="Seed of the job; each sample's own seed is derived from it."
    )
    stop: list[Annotated[str, Field(min_length=1, max_length=1000)]] = Field(
        default_factory=list, max_length=16, description="Strings that end the generation."
    )
    presence_penalty: Penalty = Field(
        0.0, description="Subtracted from the logits of tokens that the sample has already generated."
    )
    frequency_penalty: Penalty = Field(
        0.0, description="Subtracted once for each time that the sample has generated the token."
    )
    logit_bias: LogitBias = Field(
        default_factory=dict, description="Token id -> number added to its logit in every step."
    )


class SamplingChange(Spec):
    """A condition's changes of the job's sampling; null keeps the job's value."""

    temperature: float | None = Field(None, ge=0.0, le=100.0, allow_inf_nan=False)
    top_p: float | None = Field(None, gt=0.0, le=1.0)
    top_k: int | None = Field(None, ge=1)

    def applied(self, sampling: SamplingSpec) -> SamplingSpec:
        """The job's sampling with these changes."""
        return sampling.model_copy(update=self.model_dump(exclude_none=True))


def sample_seed(job_seed: int, sample_index: int, epoch: int) -> int:
    """The seed of one sample, from job seed, sample index and epoch.

    It does not depend on the condition, so that conditions are compared under the same noise.
    """
    digest = sha256(f"{job_seed}:{sample_index}:{epoch}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
