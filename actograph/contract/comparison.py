"""Answers about two conditions of one job on the same problems. Differences are condition minus baseline."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from actograph.contract.resources import JobStatus, Resource
from actograph.contract.row_selection import Segment
from actograph.contract.specs import Name


class PairedDifference(Resource):
    """Means over the pairs, and their difference."""

    pairs: int = Field(description="Samples of the two conditions with the same problem and epoch.")
    baseline: float | None = Field(None, description="Mean under the baseline; null without pairs.")
    condition: float | None = Field(None, description="Mean under the condition.")
    difference: float | None = Field(None, description="condition - baseline, epochs of a problem averaged.")
    low: float | None = Field(None, description="Lower bound of the bootstrap interval over problems.")
    high: float | None = Field(None, description="Upper bound; null below two problems.")


class MetricDifference(PairedDifference):
    """One scorer's values under both conditions."""

    only_baseline: int | None = Field(
        None, description="Pairs that only the baseline got right; null where values are not all 0 or 1."
    )
    only_condition: int | None = Field(None, description="Pairs that only the condition got right.")
    mcnemar_p: float | None = Field(
        None,
        description="Two-sided exact p-value; null with several epochs, whose pairs are not independent.",
    )


class ConditionComparison(Resource):
    """One condition against the baseline."""

    unpaired: int = Field(description="Completed samples whose twin failed or has not ended.")
    metrics: dict[str, MetricDifference]
    prompt_tokens: PairedDifference
    generated_tokens: PairedDifference


class JobComparison(Resource):
    """Every condition of a job against one of them; also while the job runs."""

    object: Literal["job.comparison"] = "job.comparison"
    job_id: str
    status: JobStatus
    baseline: str
    level: float = Field(description="Coverage of the intervals.")
    resamples: int
    conditions: dict[str, ConditionComparison]


class _Sent(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


PooledRows = Literal["all", "generated", "last", "last_prompt"] | Segment


class ActivationComparisonRequest(_Sent):
    """Which rows of which hooks are pooled (averaged over tokens) and compared pair by pair."""

    baseline: Name | None = Field(None, description="null: the job's first condition.")
    condition: Name
    hooks: Annotated[list[Annotated[str, Field(min_length=1, max_length=256)]], Field(max_length=10_000)] = (
        Field(default_factory=list, description="Hook names or aliases; none: every hook of the job.")
    )
    rows: PooledRows = Field(
        "all", description="Tokens that are averaged; `prompt`, `think`, `answer` ... are segments."
    )
    limit: int | None = Field(None, ge=1, description="Most pairs to read, first problems first.")
    mixed_identities: bool = Field(
        False, description="Compare sessions that were recorded with different models too."
    )
    store_as: Name | None = Field(
        None, description="Store each hook's mean difference as a vector of this name."
    )


class HookDifference(Resource):
    """The pooled activations of one hook, over all pairs that have it."""

    pairs: int
    width: int
    baseline_norm: float = Field(description="Euclidean norm of the mean under the baseline.")
    condition_norm: float
    difference_norm: float = Field(description="Norm of the mean difference: the direction's length.")
    cosine_similarity: float | None = Field(description="Of the two means; null where one of them is zero.")
    mean_pair_norm: float = Field(description="Mean norm of the pairs' own differences.")
    consistency: float | None = Field(
        description="Mean cosine of the pairs' differences with the mean difference; null where it is zero."
    )
    vector_id: str | None = Field(None, description="The stored direction, condition minus baseline.")


class ActivationComparison(Resource):
    object: Literal["job.activation_comparison"] = "job.activation_comparison"
    job_id: str
    baseline: str
    condition: str
    rows: Any
    pairs: int = Field(description="Pairs of sessions that were read.")
    skipped: int = Field(description="Pairs without any of the rows asked for, such as an empty segment.")
    hooks: dict[str, HookDifference]
