"""Actograph: evaluation, activation capture, queue and store in one self-hosted service.

This package is the ground floor: the contract shared by every room, the HTTP client
and the command line. It never imports torch, fastapi, celery or sqlalchemy.

    from actograph import Client
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from actograph.client import Client

__version__ = "0.1.0"
__all__ = ["Client", "__version__"]


def __getattr__(name: str) -> Any:
    """Import the client on first use: the service's own processes need none."""
    if name == "Client":
        from actograph.client import Client

        return Client
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
