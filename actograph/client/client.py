"""The service's HTTP interface as Python calls, typed by the contract.

with Client() as client:
    file = client.files.upload("problems.jsonl")
    job = client.submit({"kind": "evaluation", "model": "demo", "dataset": {"file_id": file.id}})
    job = job.wait(progress=True)
    for session in job.sessions(correct=True):
        rows = session["resid_post.3"][-10:]
"""

from collections.abc import Mapping
from typing import Any, Self, Unpack

from pydantic import BaseModel

from actograph.client.analysis import Analysis
from actograph.client.chat import Chat
from actograph.client.errors import ApiError
from actograph.client.jobs import JobHandle, Jobs
from actograph.client.matrix import Matrix, Positions, fetch
from actograph.client.service import Batches, Files, Keys, Models, Queue, Store, Vectors, Workers
from actograph.client.sessions import SessionFilters, Sessions
from actograph.client.transport import Transport
from actograph.contract.operations import Capabilities
from actograph.contract.row_selection import Reduce
from actograph.settings import Settings


class Client:
    """A connection to one service; usable from several threads.

    Calls are grouped by resource: `jobs`, `sessions`, `files`, `models`, `batches`, `vectors`, `chat`,
    `analysis`, `queue`, `workers`, `keys`, `store`.

    Args:
        base_url: the service; by default `ACTOGRAPH_URL`, else this machine.
        api_key: the key to send; by default `ACTOGRAPH_API_KEY`.
        timeout: seconds to wait for one answer.
        retries: how often a request is repeated, with growing pauses, while the service cannot be reached
            or is overloaded. Only requests that are safe to repeat are repeated.

    Raises (every call):
        ApiError: the service refused; see `status`, `code`, `message` and `errors`.
        ServiceUnreachable: no connection.
        UnexpectedAnswer: the answer does not match this version of the contract.
    """

    def __init__(
        self,
        base_url: str | None = None,
        api_key: str | None = None,
        timeout: float = 30.0,
        *,
        retries: int = 4,
    ) -> None:
        if base_url is None or api_key is None:
            settings = Settings()
            base_url = settings.effective_url if base_url is None else base_url
            api_key = settings.api_key if api_key is None else api_key
        self.base_url = base_url.rstrip("/")
        transport = self._transport = Transport(
            self.base_url, api_key, self, timeout=timeout, retries=retries
        )
        self.jobs, self.sessions, self.chat = Jobs(transport), Sessions(transport), Chat(transport)
        self.files, self.models, self.batches = Files(transport), Models(transport), Batches(transport)
        self.vectors, self.queue, self.workers = Vectors(transport), Queue(transport), Workers(transport)
        self.keys, self.store = Keys(transport), Store(transport)
        self.analysis = Analysis(transport, self.jobs)

    def submit(self, spec: Mapping[str, Any] | BaseModel, *, idempotency_key: str | None = None) -> JobHandle:
        """Submit a job: short for `client.jobs.submit`."""
        return self.jobs.submit(spec, idempotency_key=idempotency_key)

    def matrix(
        self,
        hook: str,
        *,
        positions: Positions = "last_prompt",
        reduce: Reduce = "none",
        label: str = "correct",
        epoch: int | None = None,
        limit: int | None = None,
        max_bytes: int | None = None,
        **filters: Unpack[SessionFilters],
    ) -> Matrix:
        """Read rows of one hook over all matching sessions, whatever their jobs; see `JobHandle.matrix`."""
        params = {
            **filters, "hook": hook, "reduce": reduce, "label": label, "epoch": epoch, "limit": limit,
            "max_bytes": max_bytes,
        }  # fmt: skip
        return fetch(self._transport, "/v1/activations/matrix", positions, params)

    def capabilities(self) -> Capabilities:
        """Return the job kinds, hook points, tasks and limits of the service."""
        return self._transport.call(Capabilities, "GET", "/v1/capabilities")

    def ready(self) -> bool:
        """Whether the service is ready: database, broker and a worker with its model."""
        try:
            answer = self._transport.request("GET", "/readyz", repeatable=False, timeout=10.0)
        except ApiError as error:
            if error.status == 503:
                return False
            raise
        return "[-]" not in answer.text  # a missing worker is reported in a 200

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()
