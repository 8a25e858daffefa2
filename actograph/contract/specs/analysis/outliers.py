"""The outlier job."""

from typing import ClassVar, Literal

from pydantic import Field

from actograph.contract.specs.analysis.source import AnalysisSpec


class OutliersSpec(AnalysisSpec):
    """Find outlier features, massive activations and the use of experts. See docs/analysis/outliers.md.

    Several jobs are analysed one by one and reported side by side. The default points are `attn_in` and
    `mlp_in`, and the captured points of routers.
    """

    default_points: ClassVar[tuple[str, ...]] = ("attn_in", "mlp_in", "router_logits", "expert_indices")

    kind: Literal["outliers"] = Field(description="Kind of the job.")
    threshold: float = Field(
        6.0, gt=0, allow_inf_nan=False, description="Least magnitude of an outlier value."
    )
    layer_share: float = Field(0.25, ge=0, le=1, description="Least share of layers.")
    position_share: float = Field(0.06, ge=0, le=1, description="Least share of positions.")
    positions: Literal["union", "mean"] = Field(
        "union",
        description="Reading of the share of positions: `union` counts a position if any layer has an "
        "outlier value there, `mean` averages the share over all layers.",
    )
    together: bool = Field(
        False, description="True counts the points of a layer together; false gives a result for each point."
    )
    massive_magnitude: float = Field(
        100.0, gt=0, allow_inf_nan=False, description="Massive activations are larger than this."
    )
    massive_ratio: float = Field(
        1000.0, gt=0, allow_inf_nan=False, description="Their least multiple of the layer's median magnitude."
    )
