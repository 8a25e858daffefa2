"""`client.files`: uploaded files, and files written by batches."""

from pathlib import Path
from typing import Any

from actograph.client.answers import path_of, read
from actograph.client.transport import Resource
from actograph.contract import resources
from actograph.progress import ReadMeter, meter

MB = 1_000_000
#: smaller files show no bar
SHOWN_BYTES = 8 * MB


class Files(Resource):
    """Upload, read and delete files."""

    def upload(self, path: str | Path, purpose: str = "dataset", *, progress: bool = False) -> resources.File:
        """Upload a file from disk as a stream.

        Args:
            purpose: `dataset` or `batch`.
            progress: show a bar with rate and ETA on stderr for files over 8 MB.
        """
        path = Path(path)
        size = path.stat().st_size
        with (
            path.open("rb") as stream,
            meter("MB", show=progress and size >= SHOWN_BYTES) as update,
        ):
            update("sending", 0, size // MB)
            metered = ReadMeter(stream, lambda sent: update("sending", sent // MB, size // MB))

            def parts() -> dict[str, Any]:
                stream.seek(0)
                return {"file": (path.name, metered, "application/octet-stream")}

            answer = self._transport.post_form("/v1/files", data={"purpose": purpose}, files=parts)
        return read(resources.File, answer)

    def get(self, file_id: str) -> resources.File:
        """Return a file's name, size and purpose."""
        return self._transport.call(resources.File, "GET", path_of("/v1/files", file_id))

    def content(self, file_id: str) -> bytes:
        """Return the bytes of a file."""
        return (self._transport.request("GET", path_of("/v1/files", file_id, "content"))).content

    def delete(self, file_id: str) -> resources.Deleted:
        """Delete an uploaded file that no active job reads."""
        return self._transport.call(resources.Deleted, "DELETE", path_of("/v1/files", file_id))
