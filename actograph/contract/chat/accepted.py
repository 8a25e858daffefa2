"""Fields of OpenAI's requests that have no meaning here."""

import json
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import AfterValidator, model_validator
from pydantic_core import PydanticCustomError

from actograph.contract.specs import Spec


def fault_of(field: str, why: str) -> PydanticCustomError:
    """The error of a check over several fields, reported for one of them."""
    return PydanticCustomError("fault_of", "{why}", {"why": why, "field": field})


def only(*accepted: Any, why: str) -> AfterValidator:
    """Accept null and these values."""

    def check(value: Any) -> Any:
        if value is not None and value not in accepted:
            raise ValueError(why)
        return value

    return AfterValidator(check)


class OpenAISpec(Spec):
    """A request in OpenAI's form. Unknown fields are refused as in every request.

    Attributes:
        ignored: fields that do not change the answer.
        unsupported: fields that would change it -> why they are refused; null is ignored.
        neutral: fields of other servers -> the value that changes nothing; it and null are ignored.
    """

    ignored: ClassVar[frozenset[str]] = frozenset()
    unsupported: ClassVar[Mapping[str, str]] = {}
    neutral: ClassVar[Mapping[str, Any]] = {}

    @model_validator(mode="before")
    @classmethod
    def _drop_unused(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        for field, why in cls.unsupported.items():
            if value.get(field) is not None:
                raise fault_of(field, f"not supported here: {why}")
        for field, neutral in cls.neutral.items():
            if value.get(field) is not None and value[field] != neutral:
                raise fault_of(field, f"not supported here; only {json.dumps(neutral)} is accepted")
        unused = {*cls.ignored, *cls.unsupported, *cls.neutral}
        return {name: field for name, field in value.items() if name not in unused}
