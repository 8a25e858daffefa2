"""Kinds of failures of the smoke test; each has an exit status of its own."""

from enum import IntEnum
from typing import Literal

from actograph.client.errors import ApiError, ServiceUnreachable, UnexpectedAnswer, WaitTimeout
from actograph.contract.errors import ActographError

#: statuses of a proxy whose service does not answer
_GATEWAY = (502, 503, 504)
#: error codes of a store without space
FULL = ("storage_full", "insufficient_resources", "quota_exceeded")


class Kind(IntEnum):
    """A kind of failure; the value is the exit status."""

    FAILED = 1
    KEY = 4
    UNREACHABLE = 10
    NOT_ACTOGRAPH = 11
    ROUTES = 12
    MODEL = 13
    STORE = 14
    CAPTURE = 15
    JOB = 16
    EVALUATION = 17
    CLEANUP = 18


MEANINGS: dict[Kind, str] = {
    Kind.FAILED: "another error",
    Kind.KEY: "the API key is missing, wrong or not allowed to submit",
    Kind.UNREACHABLE: "no connection, or the service is not ready",
    Kind.NOT_ACTOGRAPH: "another program answers at this address",
    Kind.ROUTES: "the service lacks a route, or has another version",
    Kind.MODEL: "the model is another, or is not loaded",
    Kind.STORE: "the store is full, or the queue is paused",
    Kind.CAPTURE: "activations are missing, incomplete, not finite, or changed after they were stored",
    Kind.JOB: "a request failed or took too long",
    Kind.EVALUATION: "the evaluation did not complete",
    Kind.CLEANUP: "the test's jobs or files could not be deleted",
}


class SmokeFailed(ActographError):
    """A step of the smoke test failed."""

    code = "smoke_failed"

    def __init__(self, kind: Kind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def classify(error: ActographError, during: Kind) -> SmokeFailed:
    """Return the failure for an error of the client.

    Args:
        during: kind of errors that say nothing more precise.
    """
    if isinstance(error, SmokeFailed):
        return error
    return SmokeFailed(_kind(error, during), str(error))


def _kind(error: ActographError, during: Kind) -> Kind:
    if isinstance(error, ServiceUnreachable):
        return Kind.UNREACHABLE
    if isinstance(error, UnexpectedAnswer):
        return Kind.NOT_ACTOGRAPH
    if isinstance(error, WaitTimeout):
        return Kind.JOB
    if error.code in FULL:
        return Kind.STORE
    if error.code == "model_not_found":
        return Kind.MODEL
    if isinstance(error, ApiError) and error.code == "http_error":  # the answer is no problem+json
        return Kind.UNREACHABLE if error.status in _GATEWAY else Kind.NOT_ACTOGRAPH
    if error.status in (401, 403):
        return Kind.KEY
    return during


Outcome = Literal["ok", "FAILED"]
