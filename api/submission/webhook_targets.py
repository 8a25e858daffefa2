"""Allowed targets of webhooks: hosts named by the operator, and no other private address."""

import ipaddress
import socket
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address, IPv6Network
from urllib.parse import urlsplit

from actograph.contract.errors import InvalidRequest
from actograph.contract.webhooks import WebhookSpec
from actograph.settings import Settings

#: https://www.rfc-editor.org/rfc/rfc6052
_NAT64 = IPv6Network("64:ff9b::/96")


def check(settings: Settings, given: WebhookSpec | None) -> WebhookSpec | None:
    """Check the webhook of a job; default is the webhook of the service.

    Raises:
        InvalidRequest: webhooks are off, or the host is not allowed.
    """
    if given is None:
        return WebhookSpec() if settings.webhook_url and settings.webhook_secret else None
    if not settings.webhook_secret:
        raise InvalidRequest(
            "webhooks are off here: the operator must set ACTOGRAPH_WEBHOOK_SECRET, which signs them",
            param="webhook",
        )
    if given.url is None:
        if not settings.webhook_url:
            raise InvalidRequest(
                "the service has no webhook of its own (ACTOGRAPH_WEBHOOK_URL); name a url",
                param="webhook.url",
            )
    elif (refused := refused_host(given.url, settings.webhook_hosts)) is not None:
        raise InvalidRequest(refused, param="webhook.url")
    return given


def refused_host(url: str, allowed: Sequence[str]) -> str | None:
    """Reason why the host of a URL is not allowed; None if it is allowed."""
    parts = urlsplit(url)
    host = (parts.hostname or "").lower()
    port = parts.port or (443 if parts.scheme == "https" else 80)
    shown = f"[{host}]" if ":" in host else host
    if {host, shown, f"{shown}:{port}"} & {entry.lower() for entry in allowed}:
        return None
    return (
        f"webhooks to {shown}:{port} are not allowed here; the operator names hosts in "
        "ACTOGRAPH_WEBHOOK_HOSTS"
    )


def addresses_of(url: str, allowed: Sequence[str] | None) -> list[str]:
    """Resolve the host of a URL.

    Args:
        allowed: private addresses that are allowed; None allows all.

    Raises:
        OSError: the host has no address.
        ValueError: an address is private and not allowed.
    """
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    found = socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    for text in addresses:
        address = ipaddress.ip_address(text.partition("%")[0])
        address = _inner(address)
        shown = f"[{address}]" if address.version == 6 else str(address)
        names = {str(address), shown, f"{shown}:{port}"}
        is_public = address.is_global and not address.is_multicast
        if allowed is not None and not is_public and not names & set(allowed):
            raise ValueError(
                f"{parts.hostname} is at the private address {address}, which ACTOGRAPH_WEBHOOK_HOSTS does "
                "not name"
            )
    return addresses


def _inner(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """The IPv4 address embedded in an IPv6 address, else the address itself."""
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    teredo = address.teredo
    return address.ipv4_mapped or address.sixtofour or (teredo[1] if teredo else address)
