"""Which rows and columns are kept and what is made of them: the parts of a capture spec that select."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator


class _Sent(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FirstFeatures(_Sent):
    """The first columns of every row."""

    first: int = Field(ge=1, le=10_000_000)


class ChosenFeatures(_Sent):
    """Columns of every row by number, stored in the order given."""

    indices: list[Annotated[int, Field(ge=0, le=10_000_000)]] = Field(
        min_length=1, max_length=100_000, fail_fast=True
    )

    @field_validator("indices")
    @classmethod
    def _no_repeats(cls, value: list[int]) -> list[int]:
        if len(set(value)) != len(value):
            raise ValueError("indices must differ")
        return value


Features = FirstFeatures | ChosenFeatures


Segment = Literal["prompt", "think", "answer", "tool_call", "tool_result"]


class Stride(_Sent):
    """Tokens 0, k, 2k, ... of prompt and generation, counted from the first token of the prompt."""

    stride: int = Field(ge=1, le=10_000_000)


def _distinct(value: list[int]) -> list[int]:
    if len(set(value)) != len(value):
        raise ValueError("positions must differ")
    return value


#: token numbers from the first token of the prompt; -1 is the last token of the prompt, -2 the one before
Tokens = Annotated[
    list[Annotated[int, Field(ge=-10_000_000, le=10_000_000, strict=True)]],
    Field(min_length=1, max_length=100_000, fail_fast=True),
    AfterValidator(_distinct),
]
Segments = Annotated[list[Segment], Field(min_length=1, max_length=5)]
NamedRows = Literal["all", "prompt", "generated", "last", "last_prompt"]
Positions = NamedRows | Segment | Stride | Tokens | Segments

#: segments and names that only a generation can have
_GENERATED = frozenset({"generated", "think", "answer", "tool_call", "tool_result"})


def needs_generation(positions: object) -> str | None:
    """The part of a choice of tokens that only generated ones can meet; None where there is none."""
    names = positions if isinstance(positions, list) else [positions]
    return next((name for name in names if isinstance(name, str) and name in _GENERATED), None)


Reduce = Literal["none", "mean", "max", "last"]


class StatsSpec(_Sent):
    """Per-channel statistics over the chosen tokens of a sample."""

    threshold: float | None = Field(
        None,
        ge=0,
        allow_inf_nan=False,
        description="Count values whose magnitude is over this; null: no count.",
    )
    tensors: bool = Field(True, description="Whether the tensors are stored beside the statistics.")


def _spelled_out(value: Any) -> Any:
    if value is True:
        return StatsSpec()
    return None if value is False else value


Stats = Annotated[
    StatsSpec | None, BeforeValidator(_spelled_out, json_schema_input_type=StatsSpec | bool | None)
]
