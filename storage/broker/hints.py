"""Notices of the index through Redis, for workers that cannot LISTEN: see `storage.index.notices`."""

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import redis

from storage.index.notices import Wait

log = logging.getLogger(__name__)

CHANNEL = "actograph-jobs"
TIMEOUT_SECONDS = 1.0
#: nothing is sent for so long after a failure, so that no request waits for Redis
PAUSE_SECONDS = 1.0


class HintSender:
    """Sends notices. A failure needs no answer: workers read the index anyway."""

    def __init__(self, url: str) -> None:
        """`url`: "" sends nothing."""
        self._redis: redis.Redis | None = None
        if url:
            self._redis = redis.Redis.from_url(
                url, socket_timeout=TIMEOUT_SECONDS, socket_connect_timeout=TIMEOUT_SECONDS, retry=None
            )
        self._paused_until = float("-inf")

    def __call__(self, models: Sequence[str]) -> None:
        if self._redis is None or time.monotonic() < self._paused_until:
            return
        try:
            for model in models:
                self._redis.publish(CHANNEL, model)
        except (redis.RedisError, OSError):
            self._paused_until = time.monotonic() + PAUSE_SECONDS

    def close(self) -> None:
        if self._redis is not None:
            self._redis.close()


@contextmanager
def listen(url: str) -> Iterator[Wait]:
    """Listen for notices. Raises redis.RedisError if Redis does not answer, also from waiting."""
    client: redis.Redis = redis.Redis.from_url(
        url, socket_connect_timeout=TIMEOUT_SECONDS, socket_keepalive=True, health_check_interval=30
    )
    try:
        with client.pubsub(ignore_subscribe_messages=True) as channel:  # type: ignore[no-untyped-call]
            channel.subscribe(CHANNEL)

            def wait(seconds: float) -> Sequence[str]:
                message = channel.get_message(timeout=seconds)
                return [] if message is None else [bytes(message["data"]).decode()]

            yield wait
    finally:
        with suppress(redis.RedisError):
            client.close()
