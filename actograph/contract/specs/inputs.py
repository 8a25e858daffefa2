"""Prompts and conversations that a client sends, and what all jobs over them have."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from actograph.contract.interventions import each
from actograph.contract.row_selection import needs_generation
from actograph.contract.specs.base import PromptText, Spec, Text
from actograph.contract.specs.conditions import CaptureCondition, distinct_names
from actograph.contract.specs.job_base import JobSpecBase

MAX_INPUTS = 100_000


class Message(Spec):
    """One chat message."""

    role: Literal["system", "user", "assistant"]
    content: Text


class CaptureInput(Spec):
    """One prompt or one conversation; exactly one of the two."""

    prompt: PromptText | None = None
    messages: list[Message] | None = Field(None, min_length=1, max_length=1000)

    @model_validator(mode="after")
    def _exactly_one(self) -> "CaptureInput":
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give exactly one of prompt and messages")
        return self


class InputJobSpec(JobSpecBase):
    """A job over prompts or conversations that a client sends, under steered conditions."""

    conditions: Annotated[list[CaptureCondition], AfterValidator(distinct_names)] = Field(
        default_factory=list, max_length=64, description="Every input is run under each; none: run once."
    )
    enable_thinking: bool = Field(False, description="Passed to the chat template.")

    @model_validator(mode="after")
    def _edits_of_what_is_read(self) -> "InputJobSpec":
        if self.is_prefill:
            for param, intervention in each(self.interventions, self.conditions):
                lacking = needs_generation(intervention.positions)
                if lacking is not None:
                    raise ValueError(
                        f"{param}.positions: {lacking} needs generated tokens; mode prefill generates none"
                    )
        return self
