"""`client.batches`: files of chat and completion requests; see docs/guides/openai.md."""

import uuid
from collections.abc import Iterator
from typing import Any

from actograph.client.answers import path_of
from actograph.client.transport import Resource
from actograph.contract.batches import Batch


class Batches(Resource):
    """Create, list and cancel batches."""

    def create(self, input_file_id: str, endpoint: str, **options: Any) -> Batch:
        """Create a batch from an uploaded file. A repeated request creates one batch only.

        Args:
            input_file_id: a file with the purpose `batch`.
            endpoint: `/v1/chat/completions` or `/v1/completions`.
            options: `completion_window`, `metadata`, `priority`, `tags`.
        """
        body = {"input_file_id": input_file_id, "endpoint": endpoint} | options
        headers = {"Idempotency-Key": str(uuid.uuid4())}
        return self._transport.call(Batch, "POST", "/v1/batches", json=body, headers=headers)

    def get(self, batch_id: str) -> Batch:
        """Return one batch with its current counts."""
        return self._transport.call(Batch, "GET", path_of("/v1/batches", batch_id))

    def list(self) -> Iterator[Batch]:
        """List batches, newest first."""
        return self._transport.items(Batch, "/v1/batches")

    def cancel(self, batch_id: str) -> Batch:
        """Cancel a batch. Finished requests are kept."""
        return self._transport.call(Batch, "POST", path_of("/v1/batches", batch_id, "cancel"))
