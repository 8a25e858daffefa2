"""Errors of the client: all are `ActographError`."""

from collections.abc import Sequence

import httpx
from pydantic import ValidationError

from actograph.contract.base import Problem, ProblemItem
from actograph.contract.errors import ActographError

_EXCERPT_CHARS = 200


class ApiError(ActographError):
    """The service refused the request."""

    # they come with each answer
    code: str  # type: ignore[misc]
    status: int  # type: ignore[misc]

    def __init__(
        self,
        message: str,
        *,
        status: int,
        code: str,
        param: str | None = None,
        errors: Sequence[ProblemItem] = (),
        retry_after: float = 0.0,
    ) -> None:
        """`errors`: invalid fields, if the service listed them; `retry_after`: seconds to wait."""
        super().__init__(message, param=param)
        self.status, self.code, self.errors, self.retry_after = status, code, list(errors), retry_after

    def __str__(self) -> str:
        """The message with the details of invalid fields, on one line."""
        details = "; ".join(
            f"{item.pointer}: {item.detail}" for item in self.errors if item.detail not in self.message
        )
        return f"{self.message} ({details})" if details else self.message


class ServiceUnreachable(ActographError, code="service_unreachable", status=503):
    """The service cannot be reached."""


class UnexpectedAnswer(ActographError, code="unexpected_answer", status=502):
    """The answer does not match this version of the contract."""


class DownloadDamaged(ActographError, code="download_damaged"):
    """Downloaded bytes do not match the checksum on record."""


class WaitTimeout(ActographError, code="wait_timeout", status=504):
    """A wait timed out."""


class JobFailed(ActographError, code="job_failed"):
    """The job failed or was cancelled."""


class AnalysisFailed(JobFailed, code="analysis_failed"):
    """An analysis ended without results."""


def from_response(response: httpx.Response) -> ApiError:
    """Return the error for an answer of status 400 or above, by its problem details (RFC 9457)."""
    status, wait = response.status_code, response.headers.get("retry-after", "")
    retry_after = float(wait) if wait.isdecimal() else 0.0
    try:
        problem = Problem.model_validate_json(response.content)
    except ValidationError:  # such as a proxy's page
        text = " ".join(response.text.split())[:_EXCERPT_CHARS]
        message = f"{status} {response.reason_phrase}".strip() + f" from {response.url}"
        message += f": {text}" if text else ""
        return ApiError(message, status=status, code="http_error", retry_after=retry_after)
    error = problem.error
    return ApiError(
        problem.detail,
        status=status,
        code=error.code or error.type,
        param=error.param,
        errors=problem.errors,
        retry_after=retry_after,
    )
