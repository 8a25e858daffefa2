"""The message that we write ourselves is the one that the installed Celery and kombu write."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
import redis

from storage.broker import wake_message
from storage.broker.broker import DRAIN_TASK, SEPARATOR, Broker, celery_app
from storage.index.database import Database

pytestmark = pytest.mark.integration

JOB = "job_" + "0" * 32
QUEUE = "actograph.run.some model/x"
#: what tells one message from another
OWN = {"id", "root_id", "origin", "correlation_id", "delivery_tag", "reply_to"}


def message_in(client: redis.Redis, name: str) -> dict[str, Any]:
    """The one message of a list, with what differs from one to the next taken out."""
    (found,) = client.lrange(name, 0, -1)
    message: dict[str, Any] = json.loads(found)
    message["body"] = json.loads(base64.b64decode(message["body"]))
    for part in ("headers", "properties"):
        assert {key: type(value) for key, value in message[part].items() if key in OWN}
        message[part] = {key: OWN & {key} or value for key, value in message[part].items()}
    return message


@pytest.mark.parametrize("priority", [0, 5, 9])
def test_it_is_the_message_of_celery(redis_url: str, tmp_path: Path, priority: int) -> None:
    name = wake_message.list_name(QUEUE, priority, SEPARATOR)
    with redis.Redis.from_url(redis_url) as client, celery_app(redis_url) as app:
        client.flushdb()
        app.send_task(DRAIN_TASK, args=[JOB], queue=QUEUE, priority=priority)
        theirs = message_in(client, name)
        client.flushdb()
        database = Database(f"sqlite:///{tmp_path / 'unused.db'}")
        broker = Broker(redis_url, database)
        assert broker.wake(JOB, priority, QUEUE)
        assert client.keys() == [name.encode()]
        assert message_in(client, name) == theirs
        assert broker.messages() == 1
        broker.close()
        database.close()
