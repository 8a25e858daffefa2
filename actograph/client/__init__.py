"""Client of an Actograph service: `Client`, and readers of stored tensors."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from actograph.client.errors import (
    AnalysisFailed,
    ApiError,
    DownloadDamaged,
    JobFailed,
    ServiceUnreachable,
    UnexpectedAnswer,
    WaitTimeout,
)
from actograph.contract.errors import ActographError, PackageMissing

if TYPE_CHECKING:
    from actograph.client.client import Client
    from actograph.client.stored_session import open_folder
    from actograph.client.torch_rows import to_torch_dataset

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
    "open_folder",
    "to_torch_dataset",
]

_MODULES = {"Client": "client", "open_folder": "stored_session", "to_torch_dataset": "torch_rows"}


def __getattr__(name: str) -> Any:
    """Import on first use: the command line starts without the client."""
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
