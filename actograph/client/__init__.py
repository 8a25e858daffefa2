"""Client of an Actograph service: `Client`, `AsyncClient`, and readers of stored tensors."""

from typing import TYPE_CHECKING, Any

from actograph.client.errors import (
    ApiError,
    DownloadDamaged,
    JobFailed,
    ServiceUnreachable,
    UnexpectedAnswer,
    WaitTimeout,
)
from actograph.contract.errors import ActographError, Conflict, Forbidden, InvalidRequest, NotFound

if TYPE_CHECKING:
    from actograph.client.aio.client import AsyncClient
    from actograph.client.blocking.client import Client

__all__ = [
    "ActographError",
    "ApiError",
    "AsyncClient",
    "Client",
    "Conflict",
    "DownloadDamaged",
    "Forbidden",
    "InvalidRequest",
    "JobFailed",
    "NotFound",
    "ServiceUnreachable",
    "UnexpectedAnswer",
    "WaitTimeout",
]


def __getattr__(name: str) -> Any:
    """Import each client on first use: most programs need one."""
    if name == "AsyncClient":
        from actograph.client.aio.client import AsyncClient

        return AsyncClient
    if name == "Client":
        from actograph.client.blocking.client import Client

        return Client
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
