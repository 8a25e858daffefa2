"""Which TCP ports are free on this machine."""

import socket


def free_port(host: str) -> int:
    """A port that nobody listens on at this moment."""
    with socket.create_server((host, 0), family=_family(host)) as server:
        port: int = server.getsockname()[1]
    return port


def is_free(host: str, port: int) -> bool:
    """Whether a server could listen there."""
    try:
        # create_server sets SO_REUSEADDR, so that connections of an ended server do not count
        with socket.create_server((host, port), family=_family(host)):
            return True
    except OSError:
        return False


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET
