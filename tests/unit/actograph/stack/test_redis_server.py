"""The embedded broker: found, started, kept private; it keeps nothing on disk."""

import stat
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import redis

from actograph.contract.errors import ServiceUnavailable
from actograph.stack import redis_server
from actograph.stack.redis_server import RedisServer

pytestmark = pytest.mark.integration


@contextmanager
def running(server: RedisServer) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(server.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while not server.answers():
            assert process.poll() is None, "redis-server did not start"
            assert time.monotonic() < deadline
            time.sleep(0.01)
        yield process
    finally:
        process.kill()
        process.wait()


@contextmanager
def connection(url: str) -> Iterator[redis.Redis]:
    client = redis.Redis.from_url(url, socket_timeout=60)
    try:
        yield client
    finally:
        client.close()


def test_a_server_comes_back_at_its_address_and_keeps_nothing_on_disk(tmp_path: Path) -> None:
    """The index knows every job that a lost message was about; an append-only file could fill the disk."""
    server = redis_server.prepare(tmp_path / "a folder")
    with running(server) as process, connection(server.url) as client:
        client.rpush("queue", *map(str, range(1000)))
        process.kill()
        process.wait(120)
        assert not server.answers()
    with running(server), connection(server.url) as client:
        assert client.lrange("queue", 0, -1) == []
    assert [path.name for path in (tmp_path / "a folder").iterdir()] == ["redis.conf"]


def test_only_who_has_the_password_is_served(tmp_path: Path) -> None:
    server = redis_server.prepare(tmp_path)
    user, _, address = server.url.partition("@")
    password, url = user.rpartition(":")[2], f"redis://{address}"
    with running(server), connection(url) as stranger, pytest.raises(redis.AuthenticationError):
        stranger.ping()
    assert password not in " ".join(server.command)
    assert len(password) >= 32
    assert stat.S_IMODE((tmp_path / "redis.conf").stat().st_mode) == 0o600
    assert password not in redis_server.prepare(tmp_path).url


def test_path_is_searched_where_the_wheel_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    binary = tmp_path / "redis-server"
    binary.write_text("#!/bin/sh\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServiceUnavailable, match="ACTOGRAPH_BROKER_URL"):
        redis_server.find_executable()
    binary.chmod(0o755)
    assert redis_server.find_executable() == binary


def test_it_listens_on_loopback_alone(tmp_path: Path) -> None:
    server = redis_server.prepare(tmp_path)
    with running(server) as process:
        found = psutil.Process(process.pid).net_connections()
        listening = {connection.laddr.ip for connection in found if connection.status == psutil.CONN_LISTEN}
    assert listening == {"127.0.0.1"}
