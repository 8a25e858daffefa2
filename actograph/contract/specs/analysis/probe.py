"""The probe job."""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from actograph.contract.base import Name
from actograph.contract.row_selection import Positions
from actograph.contract.specs.analysis.source import AnalysisSpec, JobId, distinct
from actograph.contract.specs.datasets import FileDataset


class ProbeSpec(AnalysisSpec):
    """Fit a linear probe to each hook of the sessions of one or more jobs. See docs/analysis/probes.md.

    Each session is a row: the mean of its chosen rows. Samples with the same input are a group, and stay on
    one side of every split. The default point is `resid_post`.
    """

    kind: Literal["probe"] = Field(description="Kind of the job.")
    rows: Positions = Field(
        "last_prompt", description="Tokens whose mean is a session's row, as `positions` of a capture."
    )
    label: str = Field(
        "correct",
        min_length=1,
        max_length=256,
        description="`correct`, `condition`, `job`, `answer_parity`, `target_parity`, a metric key, or "
        "a field of the samples' input. It must have two values; sessions without it are skipped.",
    )
    labels: FileDataset | None = Field(
        None,
        description="Uploaded file whose column `label` has the labels. Its other columns name the samples: "
        "`sample_id`, or `sample_index` and, where needed, `job_id`, `condition`, `epoch`.",
    )
    above: float | None = Field(
        None,
        allow_inf_nan=False,
        description="Makes two labels of numbers: those above this one, and the others.",
    )
    transfer: Annotated[list[JobId], AfterValidator(distinct)] = Field(
        default_factory=list,
        max_length=16,
        description="Jobs on whose sessions the fitted probes are scored too.",
    )
    probe: Literal["logistic", "ridge", "mean_difference"] = Field("logistic", description="Kind of probe.")
    folds: int = Field(5, ge=2, le=50, description="Number of folds.")
    c: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="C of scikit-learn; null chooses it by inner validation."
    )
    seed: int = Field(0, ge=0, description="Seed of folds, resamples and shuffles.")
    resamples: int = Field(1000, ge=1, le=100_000, description="Resamples behind each interval.")
    shuffles: int = Field(5, ge=0, le=100, description="Runs on shuffled labels; 0 runs no controls.")
    store_as: Name | None = Field(
        None, description="Store each probe's direction, of length 1, as a vector of this name."
    )

    @property
    def read_jobs(self) -> list[tuple[str, JobId]]:
        return super().read_jobs + [(f"transfer.{n}", job_id) for n, job_id in enumerate(self.transfer)]

    @model_validator(mode="after")
    def _other_jobs(self) -> Self:
        if both := sorted(set(self.jobs) & set(self.transfer)):
            raise ValueError(f"{both[0]} is in both jobs and transfer: probes transfer to other jobs")
        return self
