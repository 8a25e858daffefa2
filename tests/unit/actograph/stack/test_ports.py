"""Ports of servers that are started again after they died."""

import socket

import pytest

from actograph.stack import ports


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_no_client_is_given_a_free_port_as_its_own(host: str) -> None:
    for _ in range(20):
        port = ports.free_port(host)
        assert 20_000 <= port < 32_768
        with socket.create_server((host, port)):
            assert not ports.is_free(host, port)
        assert ports.is_free(host, port)
