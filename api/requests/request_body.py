"""The JSON body of a request, as bytes."""

from typing import Annotated

from fastapi import Depends, HTTPException, Request


async def _json_body(request: Request) -> bytes:
    """Receive the body. The thread that answers parses it, not the event loop."""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":
        raise HTTPException(415, "send the body as JSON, with Content-Type: application/json")
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise HTTPException(415, "send the body as it is, without Content-Encoding")
    return await request.body()


async def _optional_json_body(request: Request) -> bytes | None:
    body = await request.body()
    return await _json_body(request) if body else None


JsonBody = Annotated[bytes, Depends(_json_body)]
#: None if the request has no body
OptionalJsonBody = Annotated[bytes | None, Depends(_optional_json_body)]
