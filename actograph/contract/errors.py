"""Errors of Actograph.

A class's docstring is its default message. `code` is the stable machine-readable name,
`status` the HTTP status of the answer, `param` the field at fault.
"""

from collections.abc import Mapping
from typing import Any, ClassVar


class ActographError(Exception):
    """Something went wrong inside Actograph."""

    code: ClassVar[str] = "internal_error"
    status: ClassVar[int] = 500

    def __init__(
        self,
        message: str | None = None,
        *,
        param: str | None = None,
        details: Mapping[str, int] | None = None,
    ) -> None:
        """`details`: numbers for programs, such as sizes in bytes."""
        self.message = message or (type(self).__doc__ or "").strip()
        self.param = param
        self.details = dict(details) if details else None
        super().__init__(self.message)

    def as_record(self) -> dict[str, Any]:
        """The error as failed jobs and samples store it (`ErrorRecord`)."""
        record: dict[str, Any] = {"type": self.code, "message": self.message}
        return record | {"details": self.details} if self.details else record


class InvalidRequest(ActographError):
    """The request is not valid."""

    code = "invalid_request"
    status = 422


class UnknownHook(InvalidRequest):
    """The model has no such hook point."""

    code = "unknown_hook"


class UnknownModel(InvalidRequest):
    """No such model is served here."""

    code = "model_not_found"


class ContextLengthExceeded(InvalidRequest):
    """Prompt and max_tokens together exceed the model's context length."""

    code = "context_length_exceeded"


class InsufficientResources(InvalidRequest):
    """The job needs more disk or memory than is available."""

    code = "insufficient_resources"


class QuotaExceeded(InsufficientResources):
    """The job or file does not fit into the rest of the quota."""

    code = "quota_exceeded"


class InvalidDataset(InvalidRequest):
    """The dataset cannot be used."""

    code = "invalid_dataset"


class NotFound(ActographError):
    """There is no such resource."""

    code = "not_found"
    status = 404


class Conflict(ActographError):
    """The resource's state does not allow this."""

    code = "conflict"
    status = 409


class IdempotencyInFlight(Conflict):
    """A request with this Idempotency-Key is in progress; send it again in a moment."""

    code = "idempotency_in_flight"


class IdempotencyMismatch(InvalidRequest):
    """This Idempotency-Key was used with another request body."""

    code = "idempotency_mismatch"


class ExportChanged(ActographError):
    """The job's results have changed since that export; start again without skip and If-Match."""

    code = "export_changed"
    status = 412


class PayloadTooLarge(ActographError):
    """The request body is too large."""

    code = "payload_too_large"
    status = 413


class Unauthorized(ActographError):
    """A valid API key is required, in the header Authorization: Bearer."""

    code = "unauthorized"
    status = 401
    headers: ClassVar[Mapping[str, str]] = {"WWW-Authenticate": "Bearer"}


class Forbidden(ActographError):
    """The API key's role does not allow this."""

    code = "forbidden"
    status = 403


class RangeNotSatisfiable(ActographError):
    """The requested range lies outside the tensor or file."""

    code = "range_not_satisfiable"
    status = 416


class ServiceUnavailable(ActographError):
    """A service that this request needs cannot be reached."""

    code = "service_unavailable"
    status = 503


class ServiceBusy(ServiceUnavailable):
    """Other requests use the resources that this one needs; send it again in a moment."""

    headers: ClassVar[Mapping[str, str]] = {"Retry-After": "5"}


class StorageFull(ServiceUnavailable):
    """There is no space left to store this."""

    code = "storage_full"
    status = 507


class CaptureFailed(ActographError):
    """The requested activations could not be captured."""

    code = "capture_failed"


class InterventionFailed(ActographError):
    """The interventions made the model produce values that are not numbers."""

    code = "intervention_failed"


class OutOfDeviceMemory(ActographError):
    """The device ran out of memory."""

    code = "cuda_out_of_memory"


class ModelRefused(ActographError):
    """The model could not be loaded, or its hook points could not be verified."""

    code = "model_refused"


class ModelChanged(ActographError):
    """The model that this job is pinned to cannot be loaded again."""

    code = "model_changed"
    status = 409


class MixedIdentities(InvalidRequest):
    """The sessions were recorded with different models."""

    code = "mixed_identities"


class WorkerLost(ActographError):
    """The worker ended while it ran this sample."""

    code = "worker_lost"


class WorkerStalled(ActographError):
    """The device made no progress with this sample."""

    code = "worker_stalled"


class DeviceLost(ActographError):
    """The device failed, and the worker's process was restarted."""

    code = "device_lost"


class SampleTimeout(ActographError):
    """The sample exceeded its time limit."""

    code = "sample_timeout"


class DeadlineExceeded(ActographError):
    """The job's deadline passed before it ended."""

    code = "deadline_exceeded"


class JobEnded(ActographError):
    """The job ended while this sample was running."""

    code = "job_ended"


class TooManyFailures(ActographError):
    """Too many consecutive samples failed."""

    code = "too_many_failures"


class LeaseLost(ActographError):
    """Another worker has leased this sample; this worker cannot commit its result."""

    code = "lease_lost"


class StoreDamaged(ActographError):
    """A stored file is missing, incomplete or does not match its manifest."""

    code = "store_damaged"

    def __init__(
        self, message: str | None = None, *, artifact: str | None = None, file: str | None = None
    ) -> None:
        """`artifact`: id of the damaged session or upload; `file`: name of the damaged file of a session."""
        super().__init__(message)
        self.artifact = artifact
        self.file = file
