"""The calls about uploaded files."""

from pathlib import Path
from typing import Any

from actograph.client.aio.calls import Calls
from actograph.client.answers import path_of, read
from actograph.contract import resources


class FileCalls(Calls):
    """Uploaded files."""

    async def upload_file(self, path: str | Path, purpose: str = "dataset") -> resources.File:
        """Send a file from disk, without reading it into memory at once."""
        path = Path(path)
        with path.open("rb") as stream:

            def parts() -> dict[str, Any]:
                stream.seek(0)
                return {"file": (path.name, stream, "application/octet-stream")}

            answer = await self._transport.post_form("/v1/files", data={"purpose": purpose}, files=parts)
        return read(resources.File, answer)

    async def delete_file(self, file_id: str) -> resources.Deleted:
        """Remove an uploaded file that no active job reads."""
        return read(resources.Deleted, await self._transport.request("DELETE", path_of("/v1/files", file_id)))
