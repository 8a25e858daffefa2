"""Talk to a service: `Client`, `AsyncClient`, and readers for the tensors that it keeps."""

from actograph.client.aio.client import AsyncClient
from actograph.client.blocking.client import Client
from actograph.client.errors import ApiError, DownloadDamaged, ServiceUnreachable, UnexpectedAnswer

__all__ = [
    "ApiError",
    "AsyncClient",
    "Client",
    "DownloadDamaged",
    "ServiceUnreachable",
    "UnexpectedAnswer",
]
