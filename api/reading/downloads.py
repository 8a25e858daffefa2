"""Downloads of stored files: a redirect to the store, a local file with byte ranges, or a stream.

The ETag is the file's sha256, by which clients verify what they received.
"""

from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response, StreamingResponse

from storage.artifacts.checked_files import CheckedFile
from storage.artifacts.store import STREAM_CHUNK, ArtifactStore

Responses = dict[int | str, dict[str, Any]]


def binary(description: str, media_type: str = "application/octet-stream") -> Responses:
    """Document an answer of bytes."""
    content = {media_type: {"schema": {"type": "string", "format": "binary"}}}
    return {200: {"description": description, "content": content}}


RESPONSES = binary("The file.") | {
    206: {"description": "The bytes of `Range`."},
    304: {"description": "`If-None-Match` has the file's ETag, its sha256."},
    307: {"description": "The URL of the file at the store; send the same headers without the key."},
}


def serve(
    request: Request,
    store: ArtifactStore,
    file: CheckedFile,
    *,
    media_type: str,
    filename: str,
    redirects: bool,
) -> Response:
    """Serve a stored file. Raises StoreDamaged if the file is missing or has another size.

    Args:
        redirects: redirect clients to a store with URLs of its own.
    """
    headers = {
        "ETag": f'"{file.sha256}"',
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(filename, safe='')}",
        "X-Content-Type-Options": "nosniff",
    }
    if request.headers.get("if-none-match") in ("*", headers["ETag"]):
        return Response(status_code=304, headers=headers)
    # the URL is signed for GET
    url = store.presigned_url(file.key) if redirects and request.method == "GET" else None
    if url is not None:
        return RedirectResponse(url, 307)
    file.check_size()
    path = store.local_path(file.key)
    if path is not None:
        answer = FileResponse(path, headers=headers, media_type=media_type)
        answer.chunk_size = STREAM_CHUNK
        return answer
    headers["Content-Length"] = str(file.size)
    pieces = iter(()) if request.method == "HEAD" else file.pieces(0, file.size)
    return StreamingResponse(pieces, headers=headers, media_type=media_type)
