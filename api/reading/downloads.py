"""Downloads of stored files: a redirect to the store, or byte ranges and entity tags as in RFC 9110.

The ETag is the file's sha256, by which clients verify what they received.
"""

import re
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse

from actograph.contract.errors import RangeNotSatisfiable
from storage.artifacts.checked_files import CheckedFile
from storage.artifacts.store import ArtifactStore

_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The file.",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    },
    206: {"description": "The bytes of `Range`."},
    304: {"description": "`If-None-Match` has the file's ETag, its sha256."},
    307: {"description": "The URL of the file at the store; send the same headers without the key."},
}
#: longer numbers are ignored
_MAX_DIGITS = 18


class UnsatisfiableRange(RangeNotSatisfiable):
    """The range begins after the end of the file."""

    def __init__(self, size: int) -> None:
        super().__init__(f"the file has {size} bytes", param="Range")
        self.headers = {"Content-Range": f"bytes */{size}"}


def parse_range(header: str | None, size: int) -> tuple[int, int] | None:
    """Parse a range as [start, stop) of a file of `size` bytes; None for the whole file.

    Other forms and several ranges are ignored, as RFC 9110 (14.2) allows.

    Raises:
        UnsatisfiableRange: no byte of the file is in the range.
    """
    match = _RANGE.fullmatch(header.replace(" ", "")) if header else None
    if match is None or len(match[1]) > _MAX_DIGITS or len(match[2]) > _MAX_DIGITS:
        return None
    first, last = match[1], match[2]
    if first:
        start, stop = int(first), min(int(last) + 1, size) if last else size
        if last and int(last) < start:
            return None
    elif last:
        start, stop = max(0, size - int(last)), size
    else:
        return None
    if start >= stop:
        raise UnsatisfiableRange(size)
    return start, stop


def serve(
    request: Request,
    store: ArtifactStore,
    file: CheckedFile,
    *,
    media_type: str,
    filename: str,
    redirects: bool,
) -> Response:
    """Serve a stored file.

    Args:
        redirects: redirect clients to a store with URLs of its own.

    Raises:
        UnsatisfiableRange: see `parse_range`.
        StoreDamaged: the file is missing or has another size.
    """
    etag = f'"{file.sha256}"'
    headers = {
        "ETag": etag,
        "Accept-Ranges": "bytes",
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(filename, safe='')}",
        "X-Content-Type-Options": "nosniff",
    }
    if _matches(request.headers.get("if-none-match"), etag):
        return Response(status_code=304, headers=headers)
    # the URL is signed for GET
    url = store.presigned_url(file.key) if redirects and request.method == "GET" else None
    if url is not None:
        return RedirectResponse(url, 307)
    file.check_size()
    size = file.size
    if_range = request.headers.get("if-range")
    wanted = None if if_range not in (None, etag) else parse_range(request.headers.get("range"), size)
    start, stop = wanted or (0, size)
    headers["Content-Length"] = str(stop - start)
    if wanted:
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
    status = 206 if wanted else 200
    if request.method == "HEAD" or start == stop:
        return Response(status_code=status, headers=headers, media_type=media_type)
    return StreamingResponse(file.pieces(start, stop), status, headers, media_type)


def _matches(header: str | None, etag: str) -> bool:
    """Compare `If-None-Match` weakly."""
    if header is None:
        return False
    tags = [tag.strip().removeprefix("W/") for tag in header.split(",")]
    return "*" in tags or etag in tags
