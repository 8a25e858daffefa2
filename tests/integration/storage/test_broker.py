"""Wake-ups through a real Redis: what is sent, and what happens when it is away."""

import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from storage.broker.broker import ENOUGH, Broker

if TYPE_CHECKING:
    from tests.integration.conftest import RedisProcess

pytestmark = pytest.mark.integration


def test_some_messages_wait_in_the_queue_of_their_model(redis_process: "Callable[[], RedisProcess]") -> None:
    broker = Broker(redis_process().url)
    assert broker.messages() == 0
    for model in (*["some model/x"] * 20, "y"):
        assert broker.wake(model)
    assert broker.messages() == ENOUGH + 1
    broker.close()


def test_sending_goes_on_after_redis_was_restarted(
    redis_process: "Callable[[], RedisProcess]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("storage.broker.broker.PAUSE_SECONDS", 0.0)
    server = redis_process()
    broker = Broker(server.url)
    assert broker.wake("m")
    server.stop()
    assert not broker.wake("m")
    assert "does not answer" in (broker.trouble or "")
    server.start()
    assert broker.probe()
    assert broker.trouble is None
    assert broker.wake("m")
    broker.close()


def test_a_redis_that_says_nothing_holds_a_request_up_once_and_shortly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("storage.broker.broker.PAUSE_SECONDS", 3600.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        broker = Broker(f"redis://127.0.0.1:{silent.getsockname()[1]}/0")
        assert not broker.wake("m")
        asked = connections(silent)
        assert asked > 0
        assert not any(broker.wake("m") for _ in range(100))
        assert connections(silent) == 0, "it is not asked again"
        broker.close()


def connections(listener: socket.socket) -> int:
    """Number of clients that connected since the last call."""
    listener.setblocking(False)
    count = 0
    while True:
        try:
            listener.accept()[0].close()
        except BlockingIOError:
            return count
        count += 1
