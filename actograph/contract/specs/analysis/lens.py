"""The job of the logit lens."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from actograph.contract.specs.analysis.source import AnalysisSpec

TokenId = Annotated[int, Field(ge=0, lt=1 << 31)]


class LensSpec(AnalysisSpec):
    """Read stored residual rows as next tokens: the logit lens. See docs/analysis/lens.md.

    Each row passes through the final norm and the unembedding of its job's model, whose weight files the
    analysis worker must have. The default point is `resid_post`.
    """

    kind: Literal["lens"] = Field(description="Kind of the job.")
    top: int = Field(5, ge=1, le=100, description="Tokens per row in lens.csv.")
    listed: int = Field(
        8, ge=0, le=100_000, description="Sessions of each job whose rows are listed in the CSV files."
    )
    token: TokenId | Literal["next"] | None = Field(
        None,
        description="Token of the direct logit attribution: an id, or `next` for the token after each row. "
        "Null makes none. The jobs must have `resid_post` of the last layer, and the components: `embed`, "
        "`attn_out`, `mlp_out`.",
    )
    against: TokenId | None = Field(
        None, description="Subtract the contributions to the logit of this token; needs `token`."
    )

    @model_validator(mode="after")
    def _against_something(self) -> Self:
        if self.against is not None and self.token is None:
            raise ValueError("against needs a token")
        return self
