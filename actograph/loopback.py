"""Whether an address belongs to this machine alone."""

import ipaddress


def is_loopback(host: str | None) -> bool:
    """True if a host is a loopback address or `localhost`."""
    if not host:
        return False
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)
