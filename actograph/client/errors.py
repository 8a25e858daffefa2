"""What a call to the service can end in, besides an answer."""

from collections.abc import Sequence
from typing import Any

import httpx
from pydantic import ValidationError

from actograph.contract.errors import ActographError
from actograph.contract.resources import Problem, ProblemItem

_EXCERPT_CHARS = 200


class ApiError(ActographError):
    """The service refused the request."""

    # the service names status and code of each failure, so they belong to the instance here
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
    ) -> None:
        super().__init__(message, param=param)
        self.status = status
        self.code = code
        #: the fields at fault, where the service named them
        self.errors = list(errors)

    def __str__(self) -> str:
        """The message and every field at fault, on one line."""
        details = "; ".join(f"{item.pointer}: {item.detail}" for item in self.errors)
        return f"{self.message} ({details})" if details and details not in self.message else self.message


class ServiceUnreachable(ActographError):
    """The service cannot be reached."""

    code = "service_unreachable"
    status = 503


class UnexpectedAnswer(ActographError):
    """The service answered in a form that this client does not know."""

    code = "unexpected_answer"
    status = 502


class DownloadDamaged(ActographError):
    """The bytes that arrived are not those that the service has on record."""

    code = "download_damaged"


class WaitTimeout(ActographError):
    """What was waited for did not come in time."""

    code = "wait_timeout"
    status = 504


def unreachable(base_url: str, cause: Exception) -> ServiceUnreachable:
    """The error for a connection that failed or broke off."""
    if isinstance(cause, httpx.ReadTimeout | httpx.WriteTimeout | httpx.PoolTimeout):
        return ServiceUnreachable(f"no answer from the service at {base_url} in time")
    return ServiceUnreachable(f"cannot reach the service at {base_url}; start it with: actograph up")


def from_response(response: httpx.Response) -> ApiError:
    """The error that a response of status 400 or above stands for; its body must have been read.

    Problem details are read in the form of RFC 9457 with this service's `errors` and `error` members.
    """
    try:
        problem = Problem.model_validate_json(response.content)
    except ValidationError:
        return ApiError(_plain(response), status=response.status_code, code="http_error")
    return ApiError(
        problem.detail,
        status=response.status_code,
        code=problem.error.code or problem.error.type,
        param=problem.error.param,
        errors=problem.errors,
    )


def _plain(response: httpx.Response) -> str:
    """One line about a failure that is not in the service's own form, such as a proxy's page."""
    detail: Any = None
    if "json" in response.headers.get("content-type", ""):
        try:
            body = response.json()
        except ValueError:
            body = None
        detail = body.get("detail") if isinstance(body, dict) else None
    text = " ".join(str(detail or response.text).split())[:_EXCERPT_CHARS]
    reason = f"{response.status_code} {response.reason_phrase}".strip()
    return f"{reason} from {response.url}" + (f": {text}" if text else "")
