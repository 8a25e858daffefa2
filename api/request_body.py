"""A JSON body as it came."""

from fastapi import HTTPException, Request


async def json_body(request: Request) -> bytes:
    """The body's bytes; they are parsed in the thread that answers, not in the event loop."""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":
        raise HTTPException(415, "send the body as JSON, with Content-Type: application/json")
    return await request.body()
