"""The service's HTTP interface as coroutines, typed by the contract.

async with AsyncClient() as client:
    job = await client.evaluate("gsm8k", dataset="problems.jsonl", capture="resid_post@all")
    job = await job.wait(progress=True)
    async for session in job.sessions(correct=True):
        rows = await session["resid_post.3"][-10:]
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self, Unpack

from pydantic import BaseModel

from actograph.client.aio.resources.analysis import Analysis
from actograph.client.aio.resources.batches import Batches
from actograph.client.aio.resources.chat import Chat
from actograph.client.aio.resources.files import Files
from actograph.client.aio.resources.jobs import JobHandle, Jobs
from actograph.client.aio.resources.keys import Keys
from actograph.client.aio.resources.service import Models, Queue, Workers
from actograph.client.aio.resources.sessions import Sessions
from actograph.client.aio.resources.store import Store
from actograph.client.aio.resources.submissions import Submissions
from actograph.client.aio.resources.vectors import Vectors
from actograph.client.aio.transport import Transport
from actograph.client.artifact_stores import open_store
from actograph.client.errors import ApiError
from actograph.contract.service.capabilities import Capabilities
from actograph.job_requests import options as job_options
from actograph.job_requests.options import (
    EvaluationOptions,
    ExtractOptions,
    GeneratingOptions,
    Prompt,
)
from actograph.job_requests.parts import Part
from actograph.settings import Settings


class AsyncClient:
    """A connection to one service; usable from several tasks.

    Calls are grouped by resource: `jobs`, `sessions`, `files`, `models`, `batches`, `vectors`, `chat`,
    `queue`, `workers`, `keys`, `store`, `analysis`.

    Args:
        base_url: the service; by default `ACTOGRAPH_URL`, else this machine.
        api_key: the key to send; by default `ACTOGRAPH_API_KEY`.
        timeout: seconds to wait for one answer.
        retries: how often a request is repeated, with growing pauses, while the service cannot be reached
            or is overloaded. Only requests that are safe to repeat are repeated.
        store: the service's artifact store, if it can be read from here: a folder, a `file://` URL or
            `s3://bucket/prefix` (with boto3). Rows are then read from the store directly. Without an address
            (`base_url`, `ACTOGRAPH_URL`) and without a service on this machine, `client.sessions` lists the
            store itself: verdicts, tags and pins are then unknown.

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
        store: str | os.PathLike[str] | None = None,
    ) -> None:
        alone = False
        if base_url is None or api_key is None:
            settings = Settings()
            alone = base_url is None and not settings.url
            base_url = settings.effective_url if base_url is None else base_url
            api_key = settings.api_key if api_key is None else api_key
        self.base_url = base_url.rstrip("/")
        files = None if store is None else open_store(store)
        transport = self._transport = Transport(self.base_url, api_key, timeout=timeout, retries=retries)
        self.sessions = Sessions(transport, files, may_be_alone=alone)
        self.jobs = Jobs(transport, self.sessions)
        self.analysis = Analysis(self.jobs)
        self.files = Files(transport)
        self.models = Models(transport)
        self.batches = Batches(transport)
        self.vectors = Vectors(transport)
        self.chat = Chat(transport)
        self.queue = Queue(transport)
        self.workers = Workers(transport)
        self.keys = Keys(transport)
        self.submissions = Submissions(self.models, self.files, self.jobs)
        self.store = Store(transport)

    async def submit(
        self, spec: Mapping[str, Any] | BaseModel, *, idempotency_key: str | None = None
    ) -> JobHandle:
        """Submit a job: short for `client.jobs.submit`."""
        return await self.jobs.submit(spec, idempotency_key=idempotency_key)

    async def evaluate(
        self,
        task: str | Path | Part = "gsm8k",
        *,
        progress: bool = False,
        **options: Unpack[EvaluationOptions],
    ) -> JobHandle:
        """Submit an evaluation: `client.evaluate("gsm8k", dataset="a.jsonl", capture="resid_post@all")`.

        Args:
            task: the name of a task, a YAML file, or a task object.
            progress: show a bar on stderr for large uploads.
            options: fields of the job, see `EvaluationOptions`.

        Returns:
            The submitted job: `wait()` for its end, then `matrix`, `results`, `frame`, ...

        Raises:
            InvalidRequest: the job is not valid; nothing was sent.
        """
        return await self.submissions.send(job_options.evaluation(task, options), progress=progress)

    async def capture(
        self, prompts: Prompt | Sequence[Prompt], **options: Unpack[GeneratingOptions]
    ) -> JobHandle:
        """Submit a job that generates from prompts or conversations and stores activations.

        Args:
            prompts: one or several texts, or conversations as lists of messages.
            options: fields of the job, see `GeneratingOptions`.

        Raises:
            InvalidRequest: the job is not valid; nothing was sent.
        """
        return await self.submissions.send(job_options.capture(prompts, options))

    async def extract(
        self,
        texts: Prompt | Sequence[Prompt] | None = None,
        *,
        progress: bool = False,
        **options: Unpack[ExtractOptions],
    ) -> JobHandle:
        """Submit a job that reads texts, generates nothing, and stores activations.

        Args:
            texts: one or several texts or conversations; or set the option `dataset`.
            progress: show a bar on stderr for large uploads.
            options: fields of the job, see `ExtractOptions`.

        Raises:
            InvalidRequest: the job is not valid; nothing was sent.
        """
        return await self.submissions.send(job_options.extract(texts, options), progress=progress)

    async def capabilities(self) -> Capabilities:
        """Return the job kinds, hook points, tasks and limits of the service."""
        return await self._transport.call(Capabilities, "GET", "/v1/capabilities")

    async def ready(self) -> bool:
        """Whether the service is ready: database, broker and a worker with its model."""
        try:
            answer = await self._transport.request("GET", "/readyz", repeatable=False, timeout=10.0)
        except ApiError as error:
            if error.status == 503:
                return False
            raise
        return "[-]" not in answer.text  # a missing worker is reported in a 200

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._transport.aclose()
