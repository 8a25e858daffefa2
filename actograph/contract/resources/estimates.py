"""What a job would take."""

from typing import Literal

from pydantic import Field

from actograph.contract.resources.base import Resource

PromptTokensSource = Literal["request", "measured_prompts", "characters"]


class Need(Resource):
    """Bytes of one resource; null is unknown, and what is unknown refuses nothing."""

    needed: int | None = None
    available: int | None = None
    fits: bool | None = Field(None, description="null where needed or available is unknown.")


class Estimate(Resource):
    """What a job would take, before anything is queued. Sizes are bytes; null is unknown."""

    object: Literal["estimate"] = "estimate"
    model: str
    samples: int | None = Field(None, description="Units of work: inputs or problems x conditions x epochs.")
    hooks: list[str] | None = Field(None, description="Hook points that would be captured.")
    prompt_tokens_mean: int | None = None
    prompt_tokens_longest: int | None = None
    prompt_tokens_source: PromptTokensSource | None = Field(
        None,
        description="measured_prompts: a sample of the job's prompts was tokenized; characters: four for a "
        "token, since the tokenizer is not known; request: ?prompt_tokens=.",
    )
    generated_tokens: int = Field(
        description="max_tokens: what a sample generates at most; 0 where prompts are only read."
    )
    bytes_per_token: int | None = Field(
        None, description="One stored row over all hooks; 0 where rows are summed up."
    )
    bytes_per_sample: int | None = Field(None, description="One session of a prompt of mean length.")
    batch_size: int | None = Field(None, description="Samples that would run at once.")
    layers_per_pass: int | None = Field(
        None, description="Prefill: layers whose rows would be held at once; null in other jobs."
    )
    weights_bytes: int | None = Field(None, description="The model itself; `device` counts on top of it.")
    device: Need = Field(default_factory=Need, description="Memory of one batch where the model is.")
    host: Need = Field(default_factory=Need, description="Main memory of one batch.")
    disk: Need = Field(default_factory=Need, description="Every session of the job.")
    fits: bool | None = Field(None, description="False if one of the three does not fit.")
    assumptions: list[str] = Field(default_factory=list, description="What the numbers rest on.")
