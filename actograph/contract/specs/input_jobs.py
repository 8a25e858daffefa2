"""Capture jobs: prompts, conversations or texts, continued or only read."""

from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field, model_validator

from actograph.contract.base import PromptText, Spec, Text
from actograph.contract.interventions import each
from actograph.contract.row_selection import needs_generation
from actograph.contract.specs.capture import CaptureSpec
from actograph.contract.specs.conditions import CaptureCondition, distinct_names
from actograph.contract.specs.datasets import DatasetRef
from actograph.contract.specs.job_base import GeneratingSpec, JobSpecBase

MAX_INPUTS = 100_000


class Message(Spec):
    """A chat message."""

    role: Literal["system", "user", "assistant"] = Field(description="Speaker of the message.")
    content: Text = Field(description="Text of the message.")


class CaptureInput(Spec):
    """Either a prompt or a conversation."""

    prompt: PromptText | None = Field(None, description="Prompt, used as it is.")
    messages: list[Message] | None = Field(
        None, min_length=1, max_length=1000, description="Conversation, rendered by the chat template."
    )

    @model_validator(mode="after")
    def _exactly_one(self) -> "CaptureInput":
        if (self.prompt is None) == (self.messages is None):
            raise ValueError("give exactly one of prompt and messages")
        return self


class InputJobSpec(JobSpecBase):
    """A job over prompts or conversations, with optional conditions."""

    conditions: Annotated[list[CaptureCondition], AfterValidator(distinct_names)] = Field(
        default_factory=list,
        max_length=64,
        description="Every input runs under each condition; without conditions it runs once.",
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


class CaptureJobSpec(InputJobSpec, GeneratingSpec):
    """Store the activations of prompts, conversations or a dataset's texts.

    The model continues them; with `capture.mode: prefill` it only reads them.
    """

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "kind": "capture",
                    "model": "Qwen/Qwen3-0.6B",
                    "inputs": [
                        {"prompt": "The capital of France is"},
                        {"messages": [{"role": "user", "content": "Why is the sky blue?"}]},
                    ],
                    "sampling": {"max_tokens": 64, "temperature": 0.7, "seed": 1},
                    "capture": {"hooks": ["resid_post.12", "logits"], "positions": "generated"},
                },
                {
                    "kind": "capture",
                    "model": "Qwen/Qwen3-30B-A3B",
                    "dataset": {"hub": "openai/gsm8k", "config": "main", "split": "train"},
                    "text_field": "question",
                    "capture": {
                        "points": ["resid_post", "router_logits"],
                        "layers": "all",
                        "stats": True,
                        "mode": "prefill",
                    },
                    "truncate": True,
                },
            ]
        }
    )

    kind: Literal["capture"] = Field(description="Kind of the job.")
    capture: CaptureSpec | None = Field(
        default_factory=CaptureSpec,
        description="Activations to keep; left out: the default spec; null: texts only.",
    )
    inputs: list[CaptureInput] | None = Field(
        None,
        min_length=1,
        max_length=MAX_INPUTS,
        description="Prompts or conversations, instead of `dataset`.",
    )
    dataset: DatasetRef | None = Field(
        None, description="Dataset with a prompt in each row, instead of `inputs`."
    )
    text_field: str = Field(
        "text", min_length=1, max_length=256, description="Column of the dataset with the prompt."
    )
    limit: int | None = Field(
        None, ge=1, description="Maximum number of rows of the dataset; null takes all."
    )
    offset: int = Field(0, ge=0, description="Number of rows of the dataset to skip.")
    truncate: bool = Field(
        False,
        description="Mode prefill: true cuts texts to the model's context; with false a longer sample fails.",
    )

    @model_validator(mode="after")
    def _one_source(self) -> "CaptureJobSpec":
        if (self.inputs is None) == (self.dataset is None):
            raise ValueError("give exactly one of inputs and dataset")
        if self.inputs is not None and (self.limit is not None or self.offset):
            raise ValueError("limit and offset need a dataset; remove them or inputs")
        if self.truncate and not self.is_prefill:
            raise ValueError("truncate needs capture.mode: prefill; a cut prompt has no room for an answer")
        return self
