"""Fields that other services know: taken where they ask for nothing, refused with the reason elsewhere."""

from typing import Any

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError


def fault_of(field: str, why: str) -> PydanticCustomError:
    """The error of a check over several fields, told of one of them."""
    return PydanticCustomError("fault_of", "{why}", {"why": why, "field": field})


def only(*neutral: Any, why: str) -> AfterValidator:
    """Accepts null and values that ask for nothing special."""

    def check(value: Any) -> Any:
        if value is not None and value not in neutral:
            raise ValueError(why)
        return value

    return AfterValidator(check)


def unsupported(why: str) -> AfterValidator:
    return only(why=f"not supported here: {why}")
