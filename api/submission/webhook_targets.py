"""Addresses to which webhooks may go: hosts that the operator allows, and no private address besides."""

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
    """The webhook of a job that is being submitted, the service's own where it names none.

    Raises:
        InvalidRequest: webhooks are off here, or its host is not allowed.
    """
    if given is None:
        return WebhookSpec() if settings.webhook_url and settings.webhook_secret else None
    if not settings.webhook_secret:
        raise InvalidRequest(
            "webhooks are off here: the operator sets ACTOGRAPH_WEBHOOK_SECRET, by which they are signed",
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
    """Why a URL's host is not allowed; None where it is."""
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
    """Addresses of a URL's host.

    Raises:
        OSError: it has none.
        ValueError: one of them is private and not in `allowed`, which is None where any may be.
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
    """The IPv4 address that a gateway would take an IPv6 address for, else the address itself."""
    if isinstance(address, IPv4Address):
        return address
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    teredo = address.teredo
    return address.ipv4_mapped or address.sixtofour or (teredo[1] if teredo else address)
