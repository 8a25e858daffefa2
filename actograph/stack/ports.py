"""Free TCP ports of this machine."""

import errno
import random
import socket

from actograph.contract.errors import InvalidRequest

#: below the ports of clients: 32768 and up on Linux, 49152 and up elsewhere (RFC 6335)
_FIXED_PORTS = range(20_000, 32_768)


def free_port(host: str) -> int:
    """Return a free port at which a server can start again after it died.

    The port lies below those that systems give to clients. A client that retries a dead server's port among
    those can connect to itself, and then keeps the port from the server.

    Raises:
        InvalidRequest: `host` is not an address of this machine.
        OSError: none of 200 ports is free.
    """
    # the system's own randomness: processes that seed `random` alike would choose alike
    for port in random.SystemRandom().sample(_FIXED_PORTS, 200):
        if is_free(host, port):
            return port
    raise OSError(f"no free port on {host} between {_FIXED_PORTS.start} and {_FIXED_PORTS.stop}")


def is_free(host: str, port: int) -> bool:
    """Whether a server can listen on this port.

    Raises:
        InvalidRequest: `host` is not an address of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        # create_server sets SO_REUSEADDR: old connections do not count
        with socket.create_server((host, port), family=family):
            return True
    except OSError as error:
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            return False
        raise InvalidRequest(
            f"cannot listen on host {host!r}: {error.strerror}; use an address of this machine, such as "
            "127.0.0.1 or 0.0.0.0"
        ) from error
