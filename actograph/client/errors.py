"""Errors of the client."""

import socket
import ssl
from collections.abc import Sequence
from typing import Any
from urllib.request import getproxies

import httpx
from pydantic import ValidationError

from actograph.client.retries import is_loopback_host
from actograph.contract.errors import ActographError
from actograph.contract.resources import Problem, ProblemItem

_EXCERPT_CHARS = 200


class ApiError(ActographError):
    """The service refused the request."""

    # status and code come with each answer
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
        #: invalid fields, if the service listed them
        self.errors = list(errors)

    def __str__(self) -> str:
        """The message with the details of invalid fields, on one line."""
        details = "; ".join(
            f"{item.pointer}: {item.detail}" for item in self.errors if item.detail not in self.message
        )
        return f"{self.message} ({details})" if details else self.message


class ServiceUnreachable(ActographError):
    """The service cannot be reached."""

    code = "service_unreachable"
    status = 503


class UnexpectedAnswer(ActographError):
    """The answer does not match this version of the contract."""

    code = "unexpected_answer"
    status = 502


class DownloadDamaged(ActographError):
    """Downloaded bytes do not match the checksum on record."""

    code = "download_damaged"


class WaitTimeout(ActographError):
    """A wait timed out."""

    code = "wait_timeout"
    status = 504


def unreachable(base_url: str, cause: Exception) -> ServiceUnreachable:
    """Return the error for a connection that failed or was lost."""
    if isinstance(cause, httpx.ReadTimeout | httpx.WriteTimeout | httpx.PoolTimeout):
        return ServiceUnreachable(f"no answer from the service at {base_url} in time")
    reason = _root_of(cause)
    if isinstance(cause, httpx.ProxyError):
        return ServiceUnreachable(f"the proxy of the environment cannot reach {base_url}: {reason}")
    if isinstance(reason, ssl.SSLError):
        hint = "; try http:// in place of https://" if reason.reason == "WRONG_VERSION_NUMBER" else ""
        return ServiceUnreachable(f"no secure connection to the service at {base_url}: {reason}{hint}")
    if isinstance(reason, socket.gaierror):
        host = httpx.URL(base_url).host
        return ServiceUnreachable(f"cannot reach the service at {base_url}: unknown host {host!r}")
    if isinstance(cause, httpx.ProtocolError | httpx.ReadError | httpx.WriteError):
        return ServiceUnreachable(f"the service at {base_url} closed the connection: {cause}")
    if is_loopback_host(httpx.URL(base_url).host):
        return ServiceUnreachable(f"cannot reach the service at {base_url}; start it with: actograph up")
    way = " through a proxy of the environment" if httpx.URL(base_url).scheme in getproxies() else ""
    return ServiceUnreachable(f"cannot reach the service at {base_url}{way}: {cause}")


def _root_of(error: BaseException) -> BaseException:
    """The root cause of an error."""
    while (below := error.__cause__ or error.__context__) is not None:
        error = below
    return error


def from_response(response: httpx.Response) -> ApiError:
    """Return the error for a response of status 400 or above, whose body has been read.

    Reads problem details by RFC 9457 with the service's `errors` and `error` members.
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
    """One line about a failure in another form, such as a proxy's page."""
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
