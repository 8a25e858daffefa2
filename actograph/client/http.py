"""Where `Client` has its import path of old; see `blocking.client`."""

from actograph.client.blocking.client import Client

__all__ = ["Client"]
