"""Estimates of the memory and disk that a job needs."""

from typing import Literal

from pydantic import Field

from actograph.contract.base import Resource

PromptTokensSource = Literal["request", "characters"]


class Need(Resource):
    """Bytes of one resource. null is unknown; jobs are never refused for an unknown value."""

    needed: int | None = None
    available: int | None = None
    fits: bool | None = Field(None, description="null if needed or available is unknown.")


class Estimate(Resource):
    """The memory and disk that a job needs, without queueing it. Sizes are bytes; null is unknown."""

    object: Literal["estimate"] = "estimate"
    model: str
    samples: int | None = Field(
        None, description="Number of samples: inputs or problems x conditions x epochs."
    )
    hooks: list[str] | None = Field(None, description="Hook points to capture.")
    prompt_tokens_mean: int | None = None
    prompt_tokens_longest: int | None = None
    prompt_tokens_source: PromptTokensSource | None = Field(
        None,
        description="characters: a guess of four characters per token; request: ?prompt_tokens=.",
    )
    generated_tokens: int = Field(description="Maximum per sample (max_tokens); 0 if prompts are only read.")
    bytes_per_token: int | None = Field(
        None, description="One stored row of all hooks; 0 if rows are reduced."
    )
    bytes_per_sample: int | None = Field(None, description="A session with a prompt of mean length.")
    batch_size: int | None = Field(None, description="Samples that run at once.")
    weights_bytes: int | None = Field(
        None, description="The model's weights; `device` does not include them."
    )
    device: Need = Field(default_factory=Need, description="Memory of one batch on the model's device.")
    host: Need = Field(default_factory=Need, description="Main memory of one batch.")
    disk: Need = Field(default_factory=Need, description="All sessions of the job.")
    fits: bool | None = Field(None, description="False if one of the three does not fit.")
    assumptions: list[str] = Field(default_factory=list, description="Assumptions behind the numbers.")
