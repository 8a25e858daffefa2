"""A JSON body as it came, and how the OpenAPI document speaks of it."""

from typing import Any

from fastapi import HTTPException, Request

from api.problems.errors import documented


async def json_body(request: Request) -> bytes:
    """The body's bytes; they are parsed in the thread that answers, not in the event loop."""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":
        raise HTTPException(415, "send the body as JSON, with Content-Type: application/json")
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise HTTPException(415, "send the body as it is, without Content-Encoding")
    return await request.body()


async def optional_json_body(request: Request) -> bytes | None:
    """The same of a body that may be left out; None where it is."""
    body = await request.body()
    return await json_body(request) if body else None


def body_of(schema: str, *, required: bool = True) -> dict[str, Any]:
    """`openapi_extra` of a route that takes `json_body`; `schema` is the name of a component."""
    content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
    refusals = {str(status): answer for status, answer in documented(408, 413, 415).items()}
    return {"requestBody": {"required": required, "content": content}, "responses": refusals}
