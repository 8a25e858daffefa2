"""The service's HTTP interface as coroutines, typed by the contract.

async with AsyncClient() as client:
    file = await client.upload_file(Path("problems.jsonl"))
    job = await client.submit({"kind": "evaluation", "model": "demo", "dataset": {"file_id": file.id}})
    job = await job.wait(progress=True)
    async for session in client.sessions(job=job, correct=True):
        rows = await session["resid_post.3"][-10:]
"""

import os
from typing import Self

from actograph.client.aio.batch_calls import BatchCalls
from actograph.client.aio.chat_calls import ChatCalls
from actograph.client.aio.file_calls import FileCalls
from actograph.client.aio.job_calls import JobCalls
from actograph.client.aio.key_calls import KeyCalls
from actograph.client.aio.matrix_calls import MatrixCalls
from actograph.client.aio.result_calls import ResultCalls
from actograph.client.aio.service_calls import ServiceCalls
from actograph.client.aio.session_calls import SessionCalls
from actograph.client.aio.store_calls import StoreCalls
from actograph.client.aio.transport import Transport
from actograph.client.aio.vector_calls import VectorCalls
from actograph.client.artifact_stores import open_store
from actograph.settings import Settings


class AsyncClient(
    JobCalls,
    ChatCalls,
    ResultCalls,
    SessionCalls,
    MatrixCalls,
    StoreCalls,
    FileCalls,
    BatchCalls,
    VectorCalls,
    ServiceCalls,
    KeyCalls,
):
    """A connection to one service; usable from several tasks.

    Args:
        base_url: where the service is; by default `ACTOGRAPH_URL`, else this machine.
        api_key: the key to send; by default `ACTOGRAPH_API_KEY`.
        timeout: seconds that one answer may take.
        retries: times that a request is sent again, with growing pauses, when the service cannot be
            reached or cannot serve just now. Only requests that do no harm twice are repeated.
        store: where the service keeps its artifacts, if that can be read from here: a folder, a
            `file://` URL or `s3://bucket/prefix` (with boto3). Rows are then read there, past the service.

    Raises (every call):
        ApiError: the service refused; `status`, `code`, `message` and `errors` say why.
        ServiceUnreachable: no connection.
        UnexpectedAnswer: the answer has another form than this version of the contract.
    """

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        timeout: float = 30.0,
        *,
        retries: int = 4,
        store: str | os.PathLike[str] | None = None,
    ) -> None:
        if base_url is None or api_key is None:
            settings = Settings()
            base_url = settings.effective_url if base_url is None else base_url
            api_key = settings.api_key if api_key is None else api_key
        self.base_url = base_url.rstrip("/")
        self._store = None if store is None else open_store(store)
        self._transport = Transport(self.base_url, api_key, timeout=timeout, retries=retries)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._transport.aclose()
