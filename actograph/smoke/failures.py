"""Kinds of failures of the smoke test; each has an exit status of its own."""

from enum import IntEnum

from actograph.client.errors import ApiError, ServiceUnreachable, UnexpectedAnswer
from actograph.contract.errors import ActographError

#: statuses of a proxy whose service does not answer
_GATEWAY = (502, 503, 504)
#: error codes of a store without space
FULL = ("storage_full", "insufficient_resources", "quota_exceeded")


class Kind(IntEnum):
    """A kind of failure; the value is the exit status."""

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


class SmokeFailed(ActographError):
    """A step of the smoke test failed."""

    code = "smoke_failed"

    def __init__(self, kind: Kind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def failure_of(error: ActographError, during: Kind) -> SmokeFailed:
    """The failure behind an error of the client; `during` is the kind if it says nothing more precise."""
    if isinstance(error, SmokeFailed):
        return error
    kind = during
    if isinstance(error, ServiceUnreachable):
        kind = Kind.UNREACHABLE
    elif isinstance(error, UnexpectedAnswer):
        kind = Kind.NOT_ACTOGRAPH
    elif error.code in FULL:
        kind = Kind.STORE
    elif error.code == "model_not_found":
        kind = Kind.MODEL
    elif isinstance(error, ApiError) and error.code == "http_error":  # no problem+json: not from Actograph
        kind = Kind.UNREACHABLE if error.status in _GATEWAY else Kind.NOT_ACTOGRAPH
    elif error.status in (401, 403):
        kind = Kind.KEY
    return SmokeFailed(kind, str(error))
