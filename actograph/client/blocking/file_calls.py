# Made of ../aio/file_calls.py by `python actograph/client/unasync.py`: change that file, not this one.
"""The calls about uploaded files."""

from pathlib import Path
from typing import Any

from actograph.client.answers import path_of, read
from actograph.client.blocking.calls import Calls
from actograph.client.progress import Sent, meter
from actograph.contract import resources

MB = 1_000_000
#: a smaller file is sent before a bar could be read
SHOWN_BYTES = 8 * MB


class FileCalls(Calls):
    """Uploaded files."""

    def upload_file(
        self, path: str | Path, purpose: str = "dataset", *, progress: bool = False
    ) -> resources.File:
        """Send a file from disk, without reading it into memory at once.

        Args:
            progress: show a bar with rate and ETA on stderr where the file is larger than some megabytes.
        """
        path = Path(path)
        size = path.stat().st_size
        with (
            path.open("rb") as stream,
            meter("sending", "MB", size // MB, show=progress and size >= SHOWN_BYTES) as reached,
        ):
            told = Sent(stream, lambda sent: reached(sent // MB))

            def parts() -> dict[str, Any]:
                stream.seek(0)
                return {"file": (path.name, told, "application/octet-stream")}

            answer = self._transport.post_form("/v1/files", data={"purpose": purpose}, files=parts)
        return read(resources.File, answer)

    def delete_file(self, file_id: str) -> resources.Deleted:
        """Remove an uploaded file that no active job reads."""
        return read(resources.Deleted, self._transport.request("DELETE", path_of("/v1/files", file_id)))
