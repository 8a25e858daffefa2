"""Talk to a service: `Client`, and readers for the tensors that it keeps."""

from actograph.client.errors import ApiError, DownloadDamaged, ServiceUnreachable, UnexpectedAnswer
from actograph.client.http import Client

__all__ = ["ApiError", "Client", "DownloadDamaged", "ServiceUnreachable", "UnexpectedAnswer"]
