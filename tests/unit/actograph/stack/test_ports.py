"""Ports of servers that are started again after they died."""

import socket
from typing import Any

import pytest

from actograph.contract.errors import InvalidRequest
from actograph.stack import ports


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_no_client_is_given_a_free_port_as_its_own(host: str) -> None:
    for _ in range(20):
        port = ports.free_port(host)
        assert 20_000 <= port < 32_768
        with socket.create_server((host, port)):
            assert not ports.is_free(host, port)
        assert ports.is_free(host, port)


@pytest.mark.parametrize("host", ["192.0.2.1", "2001:db8::1", "no-such-host.invalid"])
def test_a_host_of_another_machine_is_refused_at_the_first_port(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """192.0.2.0/24 and 2001:db8::/32 are reserved for documentation (RFC 5737, RFC 3849)."""
    tried = []
    listen = socket.create_server

    def counted(address: tuple[str, int], **options: Any) -> socket.socket:
        tried.append(address)
        return listen(address, **options)

    monkeypatch.setattr(socket, "create_server", counted)
    with pytest.raises(InvalidRequest, match=f"cannot listen on host '{host}': .*use an address of this"):
        ports.free_port(host)
    assert len(tried) == 1
