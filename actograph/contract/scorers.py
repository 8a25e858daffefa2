"""Scorers of a job spec (`scorers`); docs/guides/tasks.md explains them."""

import json
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, model_validator

from actograph.contract.base import Name, Spec

MAX_SCORERS = 16


class ScorerBase(Spec):
    """Base of all scorers. With different labels a job can have the same scorer twice."""

    label: Name | None = Field(None, description="Last part of the metric key; null uses the default.")

    @property
    def key(self) -> str:
        """The metric key in lm-eval's form, `<metric>,<filter>`; the filter may be `none`."""
        metric, _, usual = _KEYS[getattr(self, "name", "")].partition(",")
        return f"{metric},{self.label or usual}"


class StrictMatchScorer(ScorerBase):
    """lm-eval's strict-match of GSM8K: the number in the task's answer format."""

    name: Literal["strict-match"]
    form: Literal["gsm8k", "gsm8k_cot"] | None = Field(
        None, description="`#### N`, or `The answer is N.`; null uses the task's form, or gsm8k's."
    )


class FlexibleExtractScorer(ScorerBase):
    """lm-eval's flexible-extract of GSM8K: the last number in the completion."""

    name: Literal["flexible-extract"]


class NumericScorer(ScorerBase):
    """The stated final answer as a number, compared exactly with the target's."""

    name: Literal["numeric"]
    tolerance: float = Field(
        0.0,
        ge=0.0,
        le=1.0,
        allow_inf_nan=False,
        description="Largest difference that counts as equal, if one of the two has decimals.",
    )


class ExactScorer(ScorerBase):
    """True if completion and target are equal, ignoring case, white space and a final full stop."""

    name: Literal["exact"]


class IncludesScorer(ScorerBase):
    """True if the completion contains the target, ignoring case."""

    name: Literal["includes"]


class FormatScorer(ScorerBase):
    """The share of the required parts of the answer format that are correct."""

    name: Literal["format"]
    think_required: bool = Field(False, description="One closed, non-empty think block must come first.")
    answer_marker: Annotated[str, Field(min_length=1, max_length=64)] | None = Field(
        "####",
        description="Must occur exactly once in the answer, followed by text; null does not require it.",
    )

    @model_validator(mode="after")
    def _requires_something(self) -> "FormatScorer":
        if not self.think_required and self.answer_marker is None:
            raise ValueError("ask for at least one of think_required and answer_marker")
        return self


class EfficiencyScorer(ScorerBase):
    """1 for up to `target_tokens` generated tokens, then a linear decrease to 0 at `max_tokens`."""

    name: Literal["efficiency"]
    target_tokens: int = Field(ge=1, le=1_000_000)
    max_tokens: int | None = Field(
        None, ge=1, le=1_000_000, description="null uses the job's sampling.max_tokens."
    )

    @model_validator(mode="after")
    def _falls(self) -> "EfficiencyScorer":
        if self.max_tokens is not None and self.max_tokens <= self.target_tokens:
            raise ValueError("max_tokens must be larger than target_tokens")
        return self


class AnnotationsScorer(ScorerBase):
    """The share of GSM8K's calculator annotations, `<<48/2=24>>`, with a correct result."""

    name: Literal["annotations"]
    without: float = Field(
        0.0, ge=0.0, le=1.0, allow_inf_nan=False, description="Value of a completion without annotations."
    )


_KEYS = {
    "strict-match": "exact_match,strict-match",
    "flexible-extract": "exact_match,flexible-extract",
    "numeric": "exact_match,numeric",
    "exact": "exact_match,none",
    "includes": "includes,none",
    "format": "format,none",
    "efficiency": "efficiency,none",
    "annotations": "annotations,none",
}
#: names of scorers; a name may replace the object of a scorer without parameters
SCORER_NAMES = tuple(_KEYS)


def _named(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


def _distinct_keys(value: list["AnyScorer"]) -> list["AnyScorer"]:
    keys = [scorer.key for scorer in value]
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        raise ValueError(f"two scorers would write {', '.join(twice)}; give one of them a label")
    return value


AnyScorer = (
    StrictMatchScorer
    | FlexibleExtractScorer
    | NumericScorer
    | ExactScorer
    | IncludesScorer
    | FormatScorer
    | EfficiencyScorer
    | AnnotationsScorer
)
ScorerSpec = Annotated[
    AnyScorer,
    Field(discriminator="name"),
    BeforeValidator(_named, json_schema_input_type=Literal[SCORER_NAMES] | dict[str, Any]),
]
ScorerList = Annotated[
    list[ScorerSpec], Field(min_length=1, max_length=MAX_SCORERS), AfterValidator(_distinct_keys)
]


class RescoreRequest(Spec):
    """New scorers for a job's completions; the first one gives the verdict."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"scorers": ["numeric", {"name": "efficiency", "target_tokens": 128}]}]
        }
    )

    scorers: ScorerList


def read_scorer_argument(text: str) -> Any:
    """Read a scorer of the command line: a name, or a JSON object."""
    return json.loads(text) if text.lstrip().startswith("{") else text
