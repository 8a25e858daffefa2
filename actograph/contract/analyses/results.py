"""Results of analyses: the content of `result.json`."""

from typing import Any, Literal

from pydantic import Field

from actograph.contract.base import Resource

RESULT_FILE = "result.json"


class SkippedSession(Resource):
    """A session that was left out, and the reason."""

    session_id: str
    reason: str


class AnalysisResult(Resource):
    """Content of `result.json`, the first file of an analysis's session."""

    kind: str
    spec: dict[str, Any]
    sessions: int = Field(description="Sessions with rows.")
    skipped: list[SkippedSession] = Field([], description="The first 100.")
    skipped_sessions: int = 0


class OutliersResult(AnalysisResult):
    kind: Literal["outliers"] = "outliers"
    positions: int = Field(description="Tokens that were read.")
    outlier_features: list[dict[str, Any]] = Field(
        description="`points`, `feature`, `layers`, `layer_share`, `position_share`, `largest`."
    )
    massive_activations: list[dict[str, Any]] = Field(
        description="`hook`, `session_id`, `position`, `feature`, `value`, `ratio`; the largest first."
    )
    massive_dropped: int = Field(description="Values over the magnitude that were too many to keep.")
    hooks: dict[str, dict[str, Any]] = Field(
        description="`values`, `mean`, `variance`, `kurtosis`, `largest`, `median_magnitude`."
    )
    experts: dict[str, dict[str, Any]] = Field(
        {},
        description="Layer -> `tokens`, `load`, `imbalance`, `router_entropy`, `pairs`, and `outliers` of "
        "each expert's inputs.",
    )


class ProbesResult(AnalysisResult):
    kind: Literal["probe"] = "probe"
    hooks: dict[str, dict[str, Any]] = Field(
        description="Scores, `baselines`, `classes`, `c`, `bias`, `p_value`, and `p_corrected` for the best "
        "of all hooks; the weights are in `directions.npz`."
    )
    warnings: list[str] = Field([], description="Doubts about the probes, each with its hook.")


class ComparisonResult(AnalysisResult):
    kind: Literal["compare"] = "compare"
    hooks: dict[str, dict[str, Any]] = Field(description="Fields of `actograph.analysis.comparison`.")


class LensResult(AnalysisResult):
    kind: Literal["lens"] = "lens"
    hooks: dict[str, dict[str, Any]] = Field(
        description="`rows`, and means over them: `next_log_probability` and `next_is_top` of the token that "
        "follows, `agreement` of the top token with that of the last hook."
    )
    attribution: list[dict[str, Any]] = Field(
        [], description="`component`, and the `mean` and `mean_magnitude` of its contribution to the logit."
    )
    compared_rows: int = Field(
        0, description="Rows of the last layer whose lens was compared with stored logits."
    )
