"""Errors of the client."""

import importlib
from collections.abc import Sequence
from typing import Any

import httpx
from pydantic import ValidationError

from actograph.contract.base import Problem, ProblemItem
from actograph.contract.errors import ActographError

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


class PackageMissing(ActographError):
    """A package that this call needs is not installed."""

    code = "package_missing"
    status = 501


def package(name: str, purpose: str, *, module: str | None = None) -> Any:
    """Import an optional package; `module` is its name in Python, if different.

    Raises:
        PackageMissing: it is not installed; the message names the purpose and the pip command.
    """
    try:
        return importlib.import_module(module or name)
    except ModuleNotFoundError as error:
        raise PackageMissing(f"{purpose} needs {name}: pip install {name}") from error


def from_response(response: httpx.Response) -> ApiError:
    """Return the error for an answer of status 400 or above, by its problem details (RFC 9457)."""
    try:
        problem = Problem.model_validate_json(response.content)
    except ValidationError:  # such as a proxy's page
        text = " ".join(response.text.split())[:_EXCERPT_CHARS]
        reason = f"{response.status_code} {response.reason_phrase}".strip()
        message = f"{reason} from {response.url}" + (f": {text}" if text else "")
        return ApiError(message, status=response.status_code, code="http_error")
    return ApiError(
        problem.detail,
        status=response.status_code,
        code=problem.error.code or problem.error.type,
        param=problem.error.param,
        errors=problem.errors,
    )
