# Made of ../aio/client.py by `python actograph/client/unasync.py`: change that file, not this one.
"""The service's HTTP interface as Python calls, typed by the contract.

with Client() as client:
    file = client.upload_file(Path("problems.jsonl"))
    job = client.submit({"kind": "evaluation", "model": "demo", "dataset": {"file_id": file.id}})
    job = job.wait(progress=True)
    for session in client.sessions(job=job, correct=True):
        rows = session["resid_post.3"][-10:]
"""

import os
from typing import Self

from actograph.client.artifact_stores import open_store
from actograph.client.blocking.batch_calls import BatchCalls
from actograph.client.blocking.chat_calls import ChatCalls
from actograph.client.blocking.file_calls import FileCalls
from actograph.client.blocking.job_calls import JobCalls
from actograph.client.blocking.key_calls import KeyCalls
from actograph.client.blocking.matrix_calls import MatrixCalls
from actograph.client.blocking.result_calls import ResultCalls
from actograph.client.blocking.service_calls import ServiceCalls
from actograph.client.blocking.session_calls import SessionCalls
from actograph.client.blocking.store_calls import StoreCalls
from actograph.client.blocking.transport import Transport
from actograph.client.blocking.vector_calls import VectorCalls
from actograph.settings import Settings


class Client(
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
    """A connection to one service; usable from several threads.

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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()
