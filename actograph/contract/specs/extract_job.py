"""The extract job."""

from typing import Literal

from pydantic import Field, model_validator

from actograph.contract.specs.capture import ExtractCaptureSpec
from actograph.contract.specs.datasets import DatasetRef
from actograph.contract.specs.inputs import MAX_INPUTS, CaptureInput, InputJobSpec


class ExtractSpec(InputJobSpec):
    """Read texts, generate nothing, keep the activations of every token: prefill in chunks of layers."""

    kind: Literal["extract"]
    inputs: list[CaptureInput] | None = Field(
        None, min_length=1, max_length=MAX_INPUTS, description="Texts or conversations; or `dataset`."
    )
    dataset: DatasetRef | None = Field(None, description="Rows with a text each; or `inputs`.")
    text_field: str = Field("text", min_length=1, max_length=256, description="Of each row, what is read.")
    limit: int | None = Field(None, ge=1, description="Most rows of the dataset to take; null takes all.")
    offset: int = Field(0, ge=0, description="Rows of the dataset to skip first.")
    truncate: bool = Field(
        False, description="Cut a text to the model's context; false fails a sample that is longer."
    )
    layers_per_pass: int | None = Field(
        None,
        ge=1,
        le=100_000,
        description="Layers whose rows are held at once; null: the memory plan decides.",
    )
    capture: ExtractCaptureSpec = Field(default_factory=ExtractCaptureSpec)

    @model_validator(mode="after")
    def _one_source(self) -> "ExtractSpec":
        if (self.inputs is None) == (self.dataset is None):
            raise ValueError("give exactly one of inputs and dataset")
        if self.inputs is not None and (self.limit is not None or self.offset):
            raise ValueError("limit and offset are for a dataset; inputs are taken as they are")
        return self
