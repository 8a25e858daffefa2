# Made of ../aio/batch_calls.py by `python actograph/client/unasync.py`: change that file, not this one.
"""The calls about batches of chat and completion requests."""

import uuid
from collections.abc import Iterator
from typing import Any

from actograph.client.answers import path_of, read
from actograph.client.blocking.calls import Calls
from actograph.contract import resources
from actograph.contract.batches import Batch


class BatchCalls(Calls):
    """Batches, see docs/batches.md."""

    def create_batch(self, input_file_id: str, endpoint: str, **options: Any) -> Batch:
        """Have the requests of an uploaded file answered. A repeated request makes one batch only.

        Args:
            input_file_id: of a file with the purpose `batch`.
            endpoint: `/v1/chat/completions` or `/v1/completions`.
            options: `completion_window`, `metadata`, `priority`, `tags`, `webhook`.
        """
        body = {"input_file_id": input_file_id, "endpoint": endpoint} | options
        headers = {"Idempotency-Key": str(uuid.uuid4())}
        return read(Batch, self._transport.request("POST", "/v1/batches", json=body, headers=headers))

    def batch(self, batch_id: str) -> Batch:
        """One batch, with its counts so far."""
        return read(Batch, self._transport.request("GET", path_of("/v1/batches", batch_id)))

    def batches(self) -> Iterator[Batch]:
        """Every batch, the newest first."""
        return self._items("/v1/batches", Batch, {})

    def cancel_batch(self, batch_id: str) -> Batch:
        """End a batch; what finished is kept."""
        return read(Batch, self._transport.request("POST", path_of("/v1/batches", batch_id, "cancel")))

    def file(self, file_id: str) -> resources.File:
        """What is known of an uploaded file, or of one that a batch wrote."""
        return read(resources.File, self._transport.request("GET", path_of("/v1/files", file_id)))

    def file_content(self, file_id: str) -> bytes:
        """The bytes of a file."""
        answer = self._transport.request("GET", path_of("/v1/files", file_id, "content"))
        return answer.content
