"""Failures, in RFC 9457's form and OpenAI's."""

from pydantic import Field

from actograph.contract.resources.base import Resource


class ProblemItem(Resource):
    detail: str
    pointer: str = Field(description="JSON pointer to the field at fault.")


class OpenAIError(Resource):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class Problem(Resource):
    """RFC 9457 problem details; `error` is the same failure in OpenAI's form."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    instance: str | None = None
    errors: list[ProblemItem] = Field(default_factory=list)
    error: OpenAIError
