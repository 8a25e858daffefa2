"""Errors of Actograph.

A class's docstring is its default message. `code` is the stable machine-readable name,
`status` the HTTP status of the answer, `param` the field at fault.
"""

import importlib
from collections.abc import Mapping
from typing import Any, ClassVar


class ActographError(Exception):
    """Something went wrong inside Actograph."""

    code: ClassVar[str] = "internal_error"
    status: ClassVar[int] = 500

    def __init_subclass__(cls, *, code: str = "", status: int = 0) -> None:
        cls.code, cls.status = code or cls.code, status or cls.status

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
        further = {"param": self.param, "details": self.details}
        return record | {name: value for name, value in further.items() if value}


class InvalidRequest(ActographError, code="invalid_request", status=422):
    """The request is not valid."""


class UnknownHook(InvalidRequest, code="unknown_hook"):
    """The model has no such hook point."""


class UnknownModel(InvalidRequest, code="model_not_found"):
    """No such model is served here."""


class ContextLengthExceeded(InvalidRequest, code="context_length_exceeded"):
    """Prompt and max_tokens together exceed the model's context length."""


class InsufficientResources(InvalidRequest, code="insufficient_resources"):
    """The job needs more disk or memory than is available."""


class QuotaExceeded(InsufficientResources, code="quota_exceeded"):
    """The job or file does not fit into the rest of the quota."""


class InvalidDataset(InvalidRequest, code="invalid_dataset"):
    """The dataset cannot be used."""


class FunctionFailed(InvalidRequest, code="function_failed"):
    """A tool or scorer of the operator raised, or took too long."""


class NotFound(ActographError, code="not_found", status=404):
    """There is no such resource."""


class Conflict(ActographError, code="conflict", status=409):
    """The resource's state does not allow this."""


class IdempotencyInFlight(Conflict, code="idempotency_in_flight"):
    """A request with this Idempotency-Key is in progress; send it again in a moment."""


class IdempotencyMismatch(InvalidRequest, code="idempotency_mismatch"):
    """This Idempotency-Key was used with another request body."""


class PayloadTooLarge(ActographError, code="payload_too_large", status=413):
    """The request body is too large."""


class Unauthorized(ActographError, code="unauthorized", status=401):
    """A valid API key is required, in the header Authorization: Bearer."""

    headers: ClassVar[Mapping[str, str]] = {"WWW-Authenticate": "Bearer"}


class Forbidden(ActographError, code="forbidden", status=403):
    """The API key's role does not allow this."""


class RangeNotSatisfiable(ActographError, code="range_not_satisfiable", status=416):
    """The requested range lies outside the tensor or file."""


class ServiceUnavailable(ActographError, code="service_unavailable", status=503):
    """A service that this request needs cannot be reached."""


class ServiceBusy(ServiceUnavailable):
    """Other requests use the resources that this one needs; send it again in a moment."""

    headers: ClassVar[Mapping[str, str]] = {"Retry-After": "5"}


class StorageFull(ServiceUnavailable, code="storage_full", status=507):
    """There is no space left to store this."""


class CaptureFailed(ActographError, code="capture_failed"):
    """The requested activations could not be captured."""


class ReplayDiffers(ActographError, code="replay_differs"):
    """The rows of a replay differ from the stored rows of its session."""


class InterventionFailed(ActographError, code="intervention_failed"):
    """The interventions made the model produce values that are not numbers."""


class OutOfDeviceMemory(ActographError, code="cuda_out_of_memory"):
    """The device ran out of memory."""


class ModelRefused(ActographError, code="model_refused", status=422):
    """The model could not be loaded, or its hook points could not be verified."""


class ModelChanged(ActographError, code="model_changed", status=409):
    """The model that this job is pinned to cannot be loaded again."""


class PairSkipped(InvalidRequest, code="pair_skipped"):
    """The two sessions of a pair do not correspond, or one lacks what is patched."""


class MixedIdentities(InvalidRequest, code="mixed_identities"):
    """The sessions were recorded with different models."""


class WorkerLost(ActographError, code="worker_lost"):
    """The worker ended while it ran this sample."""


class WorkerStalled(ActographError, code="worker_stalled"):
    """The device made no progress with this sample."""


class DeviceLost(ActographError, code="device_lost"):
    """The device failed, or the engine's process ended."""


class SampleTimeout(ActographError, code="sample_timeout"):
    """The sample exceeded its time limit."""


class DeadlineExceeded(ActographError, code="deadline_exceeded"):
    """The job's deadline passed before it ended."""


class JobEnded(ActographError, code="job_ended"):
    """The job ended while this sample was running."""


class TooManyFailures(ActographError, code="too_many_failures"):
    """Too many consecutive samples failed."""


class StoreDamaged(ActographError, code="store_damaged"):
    """A stored file is missing, incomplete or does not match its manifest."""

    def __init__(
        self, message: str | None = None, *, artifact: str | None = None, file: str | None = None
    ) -> None:
        """`artifact`: id of the damaged session or upload; `file`: name of the damaged file of a session."""
        super().__init__(message)
        self.artifact = artifact
        self.file = file


class PackageMissing(ActographError, code="package_missing", status=501):
    """A package that this call needs is not installed."""


def package(name: str, purpose: str, *, module: str | None = None) -> Any:
    """Import an optional package; `module` is its name in Python, if different.

    Raises:
        PackageMissing: it is not installed; the message names the purpose and the pip command.
    """
    try:
        return importlib.import_module(module or name)
    except ModuleNotFoundError as error:
        raise PackageMissing(f"{purpose} needs {name}: pip install {name}") from error
