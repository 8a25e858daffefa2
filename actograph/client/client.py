"""The service's HTTP interface as Python calls, typed by the contract.

with Client() as client:
    job = client.evaluate("gsm8k", dataset="problems.jsonl", capture="resid_post@all").wait(progress=True)
    for session in job.sessions(correct=True):
        rows = session["resid_post.3"][-10:]
"""

from collections.abc import Mapping
from typing import Any, Self, Unpack

from pydantic import BaseModel

from actograph.client.analysis import Analysis, Query, query_of
from actograph.client.chat import Chat
from actograph.client.errors import ApiError
from actograph.client.jobs import JobHandle, Jobs
from actograph.client.keywords import require_known
from actograph.client.matrix import Matrix, MatrixOptions, fetch
from actograph.client.service import Batches, Files, Keys, Models, Queue, Saes, Store, Vectors, Workers
from actograph.client.sessions import Sessions
from actograph.client.transport import Transport
from actograph.contract.job_options import (
    CaptureOptions,
    Draft,
    EvaluationOptions,
    PatchOptions,
    Prompts,
    ReplayOptions,
    draft,
)
from actograph.contract.job_specs import CaptureJobSpec, EvaluationSpec, PatchSpec, ReplaySpec
from actograph.contract.operations import Capabilities
from actograph.settings import Settings


class Client:
    """A connection to one service; usable from several threads.

    Calls are grouped by resource: `jobs`, `sessions`, `files`, `models`, `batches`, `vectors`, `saes`,
    `chat`, `analysis`, `queue`, `workers`, `keys`, `store`.

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
        self.keys, self.store, self.saes = Keys(transport), Store(transport), Saes(transport)
        self.analysis = Analysis(transport, self.jobs)

    def evaluate(self, task: str = "gsm8k", **options: Unpack[EvaluationOptions]) -> JobHandle:
        """Submit an evaluation: run a task on a dataset, score the answers, store the activations.

        Options are the fields of the spec, in short forms as on the command line:

        * `capture="resid_post@all"`, `"attn_in,mlp_in@8:20:4"`, `"mlp_in.3"` or a spec; `positions` and
          `reduce` beside it.
        * `dataset="problems.jsonl"` (uploaded), `path:...`, `hub:OWNER/NAME[:CONFIG[:SPLIT]]` or a spec.
        * `conditions=["plain", "EP02:suffix=This matters."]`, specs, or a mapping of names to suffixes.
        * `temperature`, `max_tokens` and others of `sampling`; `expires_after="7d"`.

        Args:
            task: name of a task, or a YAML file. Without a dataset a built-in task reads lm-eval's.
            model: by default the only served one.

        Raises:
            InvalidRequest: an option is not valid; nothing was sent.
            OSError: a file cannot be read.
        """
        require_known(self.evaluate, options, EvaluationOptions, EvaluationSpec, fixed=["kind"])
        return self.submit(draft({**options, "task": task, "kind": "evaluation"}))

    def capture(self, prompts: Prompts | None = None, **options: Unpack[CaptureOptions]) -> JobHandle:
        """Submit a job that stores the activations of prompts, and of their continuations.

        Takes the options of `evaluate`; `mode="prefill"` generates nothing.

        Args:
            prompts: texts, conversations as lists of messages, or inputs such as `{"prompt": ..., "label":
                ..., "group": ...}`; by default the rows of `dataset`.

        Raises:
            InvalidRequest: an option is not valid; nothing was sent.
        """
        require_known(self.capture, options, CaptureOptions, CaptureJobSpec, fixed=["kind", "inputs"])
        return self.submit(draft({**options, "inputs": prompts, "kind": "capture"}))

    def replay(self, sessions: Query, **options: Unpack[ReplayOptions]) -> JobHandle:
        """Submit a job that runs the stored tokens of sessions again, for other hooks or on another model.

        `job.results().compared` has the largest differences from the rows that the sessions have too.

        Args:
            sessions: jobs or sessions, by id or handle, or a mapping with `jobs` or `ids`, and filters
                (`condition`, `tag`, `correct`, `limit`).
            model: a served model with the same tokenizer; by default the model of the sessions.

        Raises:
            InvalidRequest: an option is not valid; nothing was sent.
        """
        require_known(self.replay, options, ReplayOptions, ReplaySpec, fixed=["kind", "sessions"])
        return self.submit(draft({**options, "sessions": query_of(sessions), "kind": "replay"}))

    def patch(self, clean: Query, corrupted: Query, **options: Unpack[PatchOptions]) -> JobHandle:
        """Submit a job of activation patching: rows of one run are put into another, cell by cell.

        `job.wait().patching()` has the effects, and their arrays by name.

        Args:
            clean: jobs or sessions, by id or handle, or a mapping with `jobs` or `ids`, and filters
                (`condition`, `tag`, `correct`, `limit`).
            corrupted: their partners, by `pair_by`.
            points: one or several, such as `"resid_pre"` or `["attn_out", "mlp_out"]`.

        Raises:
            InvalidRequest: an option is not valid; nothing was sent.
        """
        require_known(self.patch, options, PatchOptions, PatchSpec, fixed=["kind", "clean", "corrupted"])
        sides = {"clean": query_of(clean), "corrupted": query_of(corrupted)}
        return self.submit(draft({**options, **sides, "kind": "patch"}))

    def submit(
        self,
        spec: Mapping[str, Any] | BaseModel | Draft,
        *,
        idempotency_key: str | None = None,
        progress: bool = False,
    ) -> JobHandle:
        """Submit a job. A repeated request creates one job only, by its idempotency key.

        `progress` shows the upload of a large file.
        """
        if isinstance(spec, Draft):
            spec.complete(self.models.only)
            spec.upload(lambda path: self.files.upload(path, progress=progress).id)
            spec = spec.body
        return self.jobs.submit(spec, idempotency_key=idempotency_key)

    def matrix(self, hook: str, **wanted: Unpack[MatrixOptions]) -> Matrix:
        """Read rows of one hook over all matching sessions, whatever their jobs; see `JobHandle.matrix`."""
        require_known(self.matrix, wanted, MatrixOptions)
        return fetch(self._transport, "/v1/activations/matrix", hook, wanted)

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
