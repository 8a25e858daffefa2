"""What all answers share: lists, deletions and the reason of a failure."""

from typing import Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

T = TypeVar("T")


class Resource(BaseModel):
    model_config = ConfigDict(frozen=True)


class ErrorRecord(Resource):
    """Why a job or sample failed."""

    type: str
    message: str
    details: dict[str, int] | None = Field(
        None, description="Numbers behind the message: for cuda_out_of_memory, bytes in use as it happened."
    )


class ListPage(Resource, Generic[T]):
    """One page of a list, in OpenAI's shape; `after=<last_id>` gives the next."""

    object: Literal["list"] = "list"
    data: list[T]
    first_id: str | None = None
    last_id: str | None = None
    has_more: bool = False


class Deleted(Resource):
    id: str
    object: str
    deleted: bool = True
