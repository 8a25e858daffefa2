"""Free TCP ports of this machine."""

import random
import socket

#: below the ports of clients: 32768 and up on Linux, 49152 and up elsewhere (RFC 6335)
_FIXED_PORTS = range(20_000, 32_768)


def free_port(host: str) -> int:
    """Return a free port at which a server can start again after it died. Raises OSError if none is free.

    The port lies below those that systems give to clients. A client that retries a dead server's port among
    those can connect to itself, and then keeps the port from the server.
    """
    # the system's own randomness: processes that seed `random` alike would choose alike
    for port in random.SystemRandom().sample(_FIXED_PORTS, 200):
        if is_free(host, port):
            return port
    ports = f"between {_FIXED_PORTS.start} and {_FIXED_PORTS.stop}"
    raise OSError(f"no free port on {host} {ports}; is {host} an address of this machine?")


def is_free(host: str, port: int) -> bool:
    """Whether a server can listen on this port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        # create_server sets SO_REUSEADDR: old connections do not count
        with socket.create_server((host, port), family=family):
            return True
    except OSError:
        return False
