"""A broker that goes away while a message is acknowledged leaves the worker able to take the next."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from storage.broker import celery_app

if TYPE_CHECKING:
    from tests.integration.conftest import RedisProcess

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("how", ["ack", "reject", "requeue"])
def test_a_message_that_could_not_be_acknowledged_is_not_counted(
    redis_process: "Callable[[], RedisProcess]", how: str
) -> None:
    server = redis_process()
    app = celery_app(server.url)
    with app.connection_for_read() as connection:
        queue = connection.SimpleQueue("words", no_ack=False)
        queue.put("first")
        message = queue.get(timeout=60)
        message.channel.qos.prefetch_count = 1
        assert not message.channel.qos.can_consume()
        server.stop()
        with pytest.raises(connection.connection_errors):
            if how == "ack":
                message.ack()
            else:
                message.reject(requeue=how == "requeue")
        assert message.channel.qos.can_consume()
    app.close()
