"""Taking messages needs neither memory of Redis nor an answer to an acknowledgement."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
import redis

from storage.broker.broker import celery_app

if TYPE_CHECKING:
    from tests.integration.conftest import RedisProcess

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("how", ["ack", "reject", "requeue"])
def test_a_worker_takes_the_next_message_after_one_that_redis_did_not_hear_of(
    redis_process: "Callable[[], RedisProcess]", how: str
) -> None:
    server = redis_process()
    app = celery_app(server.url)
    with app.connection_for_read() as connection:
        queue = connection.SimpleQueue("words", no_ack=False)
        connection.Producer().publish("first", routing_key="words")
        message = queue.get(timeout=120)
        message.channel.qos.prefetch_count = 1
        server.stop()
        if how == "ack":
            message.ack()
        else:
            message.reject(requeue=how == "requeue")
        assert message.channel.qos.can_consume()
    app.close()


def test_messages_are_taken_from_a_redis_without_memory(redis_process: "Callable[[], RedisProcess]") -> None:
    server = redis_process()
    app = celery_app(server.url)
    with redis.Redis.from_url(server.url) as client, app.connection_for_read() as connection:
        for word in ("first", "second"):
            connection.Producer().publish(word, routing_key="words")
        client.config_set("maxmemory", 1)
        with pytest.raises(redis.ResponseError):
            client.set("anything", 1)
        queue = connection.SimpleQueue("words", no_ack=False)
        for word in ("first", "second"):
            message = queue.get(timeout=120)
            assert message.payload == word
            message.ack()
        assert client.keys() == []
    app.close()
