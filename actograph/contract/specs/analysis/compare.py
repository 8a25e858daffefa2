"""The job that compares activations."""

from typing import Literal, Self

from pydantic import Field, model_validator

from actograph.contract.base import Name
from actograph.contract.specs.analysis.source import AnalysisSpec


class CompareSpec(AnalysisSpec):
    """Compare activations of two jobs, or of two conditions of one job. See docs/analysis/comparisons.md.

    The first of two `jobs` is the baseline, or the first of two `sessions.conditions` of one job. Each
    session is a row: the mean of its chosen rows. The default point is `resid_post`.
    """

    kind: Literal["compare"] = Field(description="Kind of the job.")
    permutations: int = Field(999, ge=1, le=100_000, description="Permutations behind each p-value.")
    top: int = Field(10, ge=0, le=1000, description="Number of features to list for each hook.")
    seed: int = Field(0, ge=0, description="Seed of the permutations.")
    store_as: Name | None = Field(None, description="Store each mean difference as a vector of this name.")

    @model_validator(mode="after")
    def _two_sides(self) -> Self:
        if len(self.jobs) != 2 and (len(self.jobs) != 1 or len(self.sessions.conditions or ()) != 2):
            raise ValueError("a comparison takes two jobs, or one job and two sessions.conditions")
        return self
