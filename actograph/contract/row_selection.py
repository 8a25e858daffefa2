"""Which columns of captured rows are kept: the parts of a capture spec that select."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, field_validator


class _Sent(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class FirstFeatures(_Sent):
    """The first columns of every row."""

    first: int = Field(ge=1, le=10_000_000)


class ChosenFeatures(_Sent):
    """Columns of every row by number, stored in the order given."""

    indices: list[Annotated[int, Field(ge=0, le=10_000_000)]] = Field(min_length=1, max_length=100_000)

    @field_validator("indices")
    @classmethod
    def _distinct(cls, value: list[int]) -> list[int]:
        if len(set(value)) != len(value):
            raise ValueError("indices must differ")
        return value


Features = FirstFeatures | ChosenFeatures
