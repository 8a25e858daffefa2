"""Parts of all answers: lists, deletions, errors and problem details."""

from typing import Generic, Literal, TypeVar

from pydantic import Field

from actograph.contract.base import Resource

T = TypeVar("T")


class ErrorRecord(Resource):
    """The error of a failed job or sample."""

    type: str
    message: str
    details: dict[str, int] | None = Field(
        None, description="Numbers of the error; for cuda_out_of_memory, the bytes in use at that moment."
    )


class ListPage(Resource, Generic[T]):
    """A page of a list, in OpenAI's shape; `after=<last_id>` requests the next page."""

    object: Literal["list"] = "list"
    data: list[T]
    first_id: str | None = None
    last_id: str | None = None
    has_more: bool = False


class Deleted(Resource):
    id: str
    object: str
    deleted: bool = True


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
