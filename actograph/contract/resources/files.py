"""Uploaded files."""

from typing import Literal

from pydantic import Field

from actograph.contract.resources.base import Resource


class File(Resource):
    """An uploaded file, in OpenAI's shape."""

    id: str
    object: Literal["file"] = "file"
    bytes: int
    created_at: int
    filename: str
    purpose: str
    expires_at: int | None = Field(None, description="Unix seconds after which it is deleted; null: kept.")
    status: Literal["processed"] = Field("processed", description="It can be read as soon as it is uploaded.")
