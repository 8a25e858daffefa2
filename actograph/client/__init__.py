"""Client of an Actograph service: `Client`, and readers of stored tensors."""

from typing import TYPE_CHECKING, Any

from actograph.client.errors import (
    AnalysisFailed,
    ApiError,
    DownloadDamaged,
    JobFailed,
    PackageMissing,
    ServiceUnreachable,
    UnexpectedAnswer,
    WaitTimeout,
)
from actograph.contract.errors import ActographError

if TYPE_CHECKING:
    from actograph.client.client import Client

__all__ = [
    "ActographError",
    "AnalysisFailed",
    "ApiError",
    "Client",
    "DownloadDamaged",
    "JobFailed",
    "PackageMissing",
    "ServiceUnreachable",
    "UnexpectedAnswer",
    "WaitTimeout",
]


def __getattr__(name: str) -> Any:
    """Import the client on first use: the command line starts without it."""
    if name == "Client":
        from actograph.client.client import Client

        return Client
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
