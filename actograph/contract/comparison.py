"""Comparisons of two conditions of a job on the same problems. Differences are condition minus baseline."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from actograph.contract.base import Name, Spec
from actograph.contract.resources import JobStatus, Resource
from actograph.contract.row_selection import Positions


class PairedDifference(Resource):
    """Means over the pairs, and their difference."""

    pairs: int = Field(description="Samples of the two conditions with the same problem and epoch.")
    baseline: float | None = Field(None, description="Mean under the baseline; null without pairs.")
    condition: float | None = Field(None, description="Mean under the condition.")
    difference: float | None = Field(None, description="condition - baseline, epochs of a problem averaged.")
    low: float | None = Field(None, description="Lower bound of the bootstrap interval over problems.")
    high: float | None = Field(None, description="Upper bound; null below two problems.")


class MetricDifference(PairedDifference):
    """A scorer's values under both conditions."""

    only_baseline: int | None = Field(
        None, description="Pairs that only the baseline got right; null where values are not all 0 or 1."
    )
    only_condition: int | None = Field(None, description="Pairs that only the condition got right.")
    mcnemar_p: float | None = Field(
        None,
        description="Two-sided exact p-value; null with several epochs, whose pairs are not independent.",
    )


class ConditionComparison(Resource):
    """Comparison of one condition with the baseline."""

    unpaired: int = Field(description="Completed samples whose counterpart failed or has not ended.")
    metrics: dict[str, MetricDifference]
    prompt_tokens: PairedDifference
    generated_tokens: PairedDifference


class JobComparison(Resource):
    """Comparison of each condition of a job with its baseline; available while the job runs."""

    object: Literal["job.comparison"] = "job.comparison"
    job_id: str
    status: JobStatus
    baseline: str
    level: float = Field(description="Coverage of the intervals.")
    resamples: int
    conditions: dict[str, ConditionComparison]


class ActivationComparisonRequest(Spec):
    """Hooks and positions to average over tokens and to compare pair by pair."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "condition": "ep02",
                    "hooks": ["resid_post.12"],
                    "positions": "last_prompt",
                    "store_as": "career",
                }
            ]
        }
    )

    baseline: Name | None = Field(None, description="null is the job's first condition.")
    condition: Name
    hooks: Annotated[list[Annotated[str, Field(min_length=1, max_length=256)]], Field(max_length=10_000)] = (
        Field(
            default_factory=list,
            description="Hook names or aliases; an empty list compares every hook of the job.",
        )
    )
    positions: Positions = Field("all", description="Tokens to average, as in a capture spec.")
    limit: int | None = Field(None, ge=1, description="Maximum number of pairs, in the order of the dataset.")
    store_as: Name | None = Field(
        None, description="Store each hook's mean difference as a vector of this name."
    )


class HookDifference(Resource):
    """The pooled activations of one hook, over all pairs with this hook."""

    pairs: int
    width: int
    baseline_norm: float = Field(description="Euclidean norm of the mean under the baseline.")
    condition_norm: float
    difference_norm: float = Field(description="Norm of the mean difference.")
    cosine_similarity: float | None = Field(
        description="Cosine similarity of the two means; null if one of them is zero."
    )
    mean_pair_norm: float = Field(description="Mean norm of the pairs' differences.")
    consistency: float | None = Field(
        description="Mean cosine of the pairs' differences with the mean difference; null if that is zero."
    )
    vector_id: str | None = Field(None, description="The stored direction, condition minus baseline.")


class ActivationComparison(Resource):
    object: Literal["job.activation_comparison"] = "job.activation_comparison"
    job_id: str
    baseline: str
    condition: str
    positions: Positions
    pairs: int = Field(description="Pairs of sessions that were compared.")
    skipped: int = Field(description="Pairs without these positions, for example with an empty segment.")
    hooks: dict[str, HookDifference]
