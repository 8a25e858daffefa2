"""Which addresses a webhook may go to, however they are written."""

import socket

import pytest

from api.submission.webhook_targets import addresses_of


def test_private_addresses_are_refused_unless_they_are_named(subtests: pytest.Subtests) -> None:
    for host in [
        "127.0.0.1", "2130706433", "0x7f.1", "127.1", "0.0.0.0", "10.0.0.1", "100.64.0.1", "169.254.169.254",
        "224.0.0.1", "255.255.255.255", "[::1]", "[::]", "[fe80::1]", "[fd00::1]", "[ff02::1]",
        "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "[64:ff9b::7f00:1]", "[64:ff9b::a9fe:a9fe]",
        "[2002:7f00:1::]", "[2001:0:808:808:0:0:80ff:fffe]",
    ]:  # fmt: skip
        with subtests.test(host=host):
            try:
                with pytest.raises(ValueError, match="private address"):
                    addresses_of(f"http://{host}/hook", ("hooks.example.com",))
            except socket.gaierror:
                pytest.skip("this machine has no IPv6 or does not read this form")


def test_what_the_operator_names_may_be_private() -> None:
    assert addresses_of("http://127.0.0.1:8080/", ("127.0.0.1:8080",)) == ["127.0.0.1"]
    assert addresses_of("http://127.0.0.1:8080/", None) == ["127.0.0.1"]
    with pytest.raises(ValueError, match="private address"):
        addresses_of("http://127.0.0.1:8081/", ("127.0.0.1:8080",))
    assert addresses_of("http://8.8.8.8/", ()) == ["8.8.8.8"]
