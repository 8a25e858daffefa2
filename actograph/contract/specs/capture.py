"""Capture specs: the activations to store."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from actograph.contract import hooks
from actograph.contract.base import Spec, canonical_digest
from actograph.contract.row_selection import Features, Positions, Reduce, Stats, needs_generation

Dtype = Literal["model", "float32", "float16", "bfloat16"]
LayerIndex = Annotated[int, Field(ge=0)]
Layers = list[LayerIndex] | Literal["all"] | hooks.LayerSlice


class CaptureSpec(Spec):
    """The activations to store. See docs/guides/capture.md.

    A job captures `points` x `layers` and the explicit `hooks`. Points without a layer
    (`embed`, `final_norm`, `logits`) ignore `layers`. `layers: null` means a quarter, a half
    and three quarters of the depth. Without `points` and `hooks` the point is `resid_post`.
    """

    points: list[hooks.PointName] = Field(
        default_factory=list, max_length=len(hooks.POINTS), description="Points to read in each of `layers`."
    )
    layers: Layers | None = Field(
        None,
        description="Layer numbers, `all`, or `start:stop:step`; null: a quarter, half and three quarters of "
        "the depth.",
    )
    hooks: list[Annotated[str, Field(min_length=1, max_length=256)]] = Field(
        default_factory=list, max_length=10_000, description="Hook names or aliases."
    )
    positions: Positions = Field(
        "all",
        description="Tokens whose rows are stored: a name, one or several segments, {stride: k}, or token "
        "numbers (negative numbers count from the end of the prompt).",
    )
    features: Features | None = Field(
        None, description="Columns of each hook to store, such as {first: 50} or {indices: [3, 700]}."
    )
    reduce: Reduce = Field(
        "none", description="Store one row per hook and sample instead of a row for each selected token."
    )
    stats: Stats = Field(
        None,
        description="Per-channel statistics of the selected tokens, with the tensors or instead of them.",
    )
    dtype: Dtype = Field(
        "model", description="Stored dtype; `model` keeps the model's own. Integers stay integers."
    )
    mode: Literal["generate", "prefill"] = Field(
        "generate", description="`prefill` reads the prompt and generates nothing."
    )

    @model_validator(mode="after")
    def _within_the_prompt(self) -> "CaptureSpec":
        lacking = needs_generation(self.positions)
        if self.mode == "prefill" and lacking is not None:
            raise ValueError(f"positions {lacking} need generated tokens, and mode prefill generates none")
        return self

    @model_validator(mode="after")
    def _reduced_or_dropped(self) -> "CaptureSpec":
        if self.reduce != "none" and self.stats is not None and not self.stats.tensors:
            raise ValueError("reduce makes a tensor and stats.tensors: false stores none; remove one of them")
        return self

    def digest(self) -> str:
        """sha256 of the spec in canonical JSON, stored in each session's manifest."""
        return canonical_digest(self.model_dump(mode="json"))
