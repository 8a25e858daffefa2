# Generated from aio/resources/submissions.py by `python actograph/client/unasync.py`: edit that file.
"""`client.submissions`: choose the model of a job, check the job, upload its files, submit it."""

from typing import Any

from actograph.client.blocking.resources.files import Files
from actograph.client.blocking.resources.jobs import JobHandle, Jobs
from actograph.client.blocking.resources.service import Models
from actograph.contract.errors import InvalidRequest
from actograph.contract.specs import ANALYSIS_KINDS
from actograph.job_requests.assembly import JobRequest, check


class Submissions:
    """Submit job requests with files on this machine: behind `client.evaluate`, `capture` and `extract`."""

    def __init__(self, models: Models, files: Files, jobs: Jobs) -> None:
        self._models = models
        self._files = files
        self._jobs = jobs

    def send(self, request: JobRequest, *, progress: bool = False) -> JobHandle:
        """Submit a job, after a check of its fields and the upload of its files.

        Args:
            progress: show a bar for large uploads.

        Raises:
            InvalidRequest: the message lists every invalid field.
        """
        self.complete(request.body)
        self.upload(request, progress=progress)
        return self._jobs.submit(request.body)

    def complete(self, body: dict[str, Any]) -> None:
        """Add the served model if the job has none, and check the job.

        Raises:
            InvalidRequest: there is not exactly one model to choose, or a field is invalid.
        """
        if "model" not in body and body.get("kind") not in ANALYSIS_KINDS:
            served = self._models.list()
            if len(served) != 1:
                listed = ", ".join(model.id for model in served) or "none"
                raise InvalidRequest(f"choose a model with --model; served: {listed}", param="model")
            body["model"] = served[0].id
        check(body)

    def upload(self, request: JobRequest, *, progress: bool = False) -> list[str]:
        """Upload the files of a job and put their ids into its body. Returns the ids."""
        sent = []
        for field, path in request.uploads.items():
            sent.append((self._files.upload(path, progress=progress)).id)
            request.body[field] = {"file_id": sent[-1]}
        return sent
