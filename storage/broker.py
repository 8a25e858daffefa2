"""The one file that knows the broker. It wakes workers and carries job ids, nothing else.

A lost or doubled message does no harm: the database says what is to be done, and the API's
reconciler wakes jobs again whose message is gone.
"""

import base64
import json
import time
from typing import Any

import redis
from celery import Celery
from kombu.exceptions import KombuError

from actograph.contract.errors import ServiceUnavailable

DRAIN_TASK = "actograph.drain"
QUEUE = "actograph"
PRIORITIES = list(range(10))
SEPARATOR = ":"
#: a time slice is about a minute; no message may come near this
VISIBILITY_TIMEOUT_SECONDS = 3600

#: a broker that has just taken a message is there
TRUST_SECONDS = 1.0


def celery_app(broker_url: str) -> Celery:
    """A Celery app with the settings that both ends of the queue must share."""
    app = Celery("actograph", broker=broker_url, set_as_current=False)
    app.conf.update(
        task_default_queue=QUEUE,
        task_ignore_result=True,
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        task_default_priority=5,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options={
            "visibility_timeout": VISIBILITY_TIMEOUT_SECONDS,
            "priority_steps": PRIORITIES,
            "sep": SEPARATOR,
            "queue_order_strategy": "priority",
            "socket_timeout": 30,
            "socket_connect_timeout": 5,
            "socket_keepalive": True,
        },
        worker_prefetch_multiplier=1,
        worker_disable_prefetch=True,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        worker_pool="prefork",
        worker_concurrency=1,
        # the model lives in the child, and CUDA does not survive a fork
        worker_pool_start_method="spawn",
        # the child loads the model before it reports that it is up, and a large one takes its time
        worker_proc_alive_timeout=3600,
        worker_hijack_root_logger=False,
        worker_send_task_events=False,
    )
    return app


class Broker:
    """Wakes workers for jobs."""

    def __init__(self, url: str) -> None:
        self._celery = celery_app(url)
        self._redis: redis.Redis = redis.Redis.from_url(
            url, socket_timeout=5, socket_connect_timeout=5, retry=None
        )
        self._answered_at = float("-inf")

    def wake(self, job_id: str, priority: int) -> bool:
        """Say that a job may have work. False where the broker cannot be reached.

        A failure needs no other answer: the reconciler wakes the job once the broker is back.
        """
        try:
            # kombu tries a broker that is away for seconds; a ping says so at once
            if time.monotonic() > self._answered_at + TRUST_SECONDS:
                self._redis.ping()
            self._celery.send_task(DRAIN_TASK, args=[job_id], priority=priority, retry=False)
        except (redis.RedisError, KombuError, OSError):
            self._answered_at = float("-inf")
            return False
        self._answered_at = time.monotonic()
        return True

    def waiting_job_ids(self) -> set[str]:
        """Jobs that have a message in the queue; what a worker has taken is not counted.

        Raises:
            ServiceUnavailable: the broker does not answer.
        """
        names = [QUEUE if p == 0 else f"{QUEUE}{SEPARATOR}{p}" for p in PRIORITIES]
        found: set[str] = set()
        try:
            for name in names:
                for message in self._redis.lrange(name, 0, -1):
                    found.add(_job_id(message))
        except redis.RedisError as error:
            raise ServiceUnavailable("the broker does not answer") from error
        return found

    def ping(self) -> None:
        """Raises ServiceUnavailable where the broker does not answer."""
        try:
            self._redis.ping()
        except redis.RedisError as error:
            raise ServiceUnavailable("the broker does not answer") from error

    def close(self) -> None:
        self._redis.close()
        self._celery.close()


def _job_id(message: bytes | str) -> str:
    body: Any = json.loads(base64.b64decode(json.loads(message)["body"]))
    return str(body[0][0])
