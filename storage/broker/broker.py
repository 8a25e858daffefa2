"""Wake-ups for workers through Celery: a message says that the index may have work for a model.

A lost or doubled message does no harm: the index has the jobs, and idle workers read it every few seconds.
"""

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial

import redis
from celery import Celery
from kombu.entity import Queue
from kombu.exceptions import OperationalError

from actograph.contract.errors import ServiceUnavailable
from storage.broker import acks

log = logging.getLogger(__name__)

WAKE_TASK = "actograph.wake"
PREFIX = "actograph.wake."
#: messages that may wait: they wake every idle worker, and whoever takes one reads the index as it is then
ENOUGH = 8
#: a write that shows whether Redis takes messages; it expires at once
_PROBE = "actograph-probe"
TIMEOUT_SECONDS = 1.0
#: no message is sent for so long after a failure, so that no request waits for Redis
PAUSE_SECONDS = 1.0


def queue_of(model: str) -> str:
    """The Celery queue read by all workers that may hold this model."""
    return PREFIX + model


def celery_app(broker_url: str, models: Sequence[str] = ()) -> Celery:
    """The Celery app of a worker that may hold `models`, or of a sender."""
    acks.install()
    app = Celery("actograph", broker=broker_url, set_as_current=False)
    app.conf.update(
        task_queues=[Queue(queue_of(model)) for model in models] or None,  # type: ignore[no-untyped-call]
        task_ignore_result=True,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options={
            "priority_steps": [0],
            "socket_timeout": 30,
            "socket_connect_timeout": 5,
            "socket_keepalive": True,
        },
        worker_prefetch_multiplier=1,
        worker_disable_prefetch=True,
        worker_cancel_long_running_tasks_on_connection_loss=False,
        # a wake-up returns at once: the process has threads of its own
        worker_pool="solo",
        worker_concurrency=1,
        worker_hijack_root_logger=False,
        worker_send_task_events=False,
        # the index knows the workers
        worker_enable_remote_control=False,
    )
    return app


def _sending_app(broker_url: str) -> Celery:
    """A Celery app whose messages are sent within seconds or not at all."""
    app = celery_app(broker_url)
    app.conf.broker_transport_options |= {
        "socket_timeout": TIMEOUT_SECONDS,
        "socket_connect_timeout": TIMEOUT_SECONDS,
        # without this kombu tries to connect for ever, whatever `retry` says
        "max_retries": 0,
    }
    return app


class Broker:
    """Wakes workers. Safe for use from many threads."""

    def __init__(self, url: str) -> None:
        """Nothing is opened before the first message."""
        self._app = _sending_app(url)
        self._redis: redis.Redis = redis.Redis.from_url(
            url, socket_timeout=TIMEOUT_SECONDS, socket_connect_timeout=TIMEOUT_SECONDS, retry=None
        )
        #: why the last message, or probe, was not taken; None if it was
        self.trouble: str | None = None
        self._paused_until = float("-inf")

    def wake(self, model: str) -> bool:
        """Tell a worker that a job of this model may have work. False if Redis takes no message.

        A failure needs no other answer: idle workers find the job in the index.
        """
        if time.monotonic() < self._paused_until:
            return False
        queue = queue_of(model)
        send = partial(self._app.send_task, WAKE_TASK, args=[model], queue=queue, retry=False)
        return self._takes(lambda: self._redis.llen(queue) >= ENOUGH or send())

    def probe(self) -> bool:
        """Whether Redis takes a write now; `trouble` says why not."""
        return self._takes(lambda: self._redis.set(_PROBE, 1, px=1000))

    def messages(self) -> int:
        """Number of messages that no worker has taken yet.

        Raises:
            ServiceUnavailable: the broker does not answer.
        """
        try:
            return sum(map(self._redis.llen, list(self._redis.scan_iter(f"{PREFIX}*", _type="list"))))
        except redis.RedisError as error:
            raise ServiceUnavailable("the broker does not answer") from error

    def ping(self) -> None:
        """Raises ServiceUnavailable if the broker does not answer."""
        try:
            self._redis.ping()
        except redis.RedisError as error:
            raise ServiceUnavailable("the broker does not answer") from error

    def close(self) -> None:
        self._redis.close()
        self._app.close()

    def _takes(self, write: Callable[[], object]) -> bool:
        try:
            write()
        except (redis.RedisError, OperationalError, OSError) as error:
            trouble = _words(error)
            if self.trouble is None:
                log.warning("%s; workers find jobs by reading the index", trouble)
            self.trouble = trouble
            self._paused_until = time.monotonic() + PAUSE_SECONDS
            return False
        if self.trouble is not None:
            log.warning("Redis takes messages again")
        self.trouble = None
        return True


def _words(error: Exception) -> str:
    cause = error.__cause__ or error  # kombu wraps the errors of redis
    if isinstance(cause, redis.ResponseError):
        return (
            f"Redis refuses messages that wake workers ({cause}); give it more memory (maxmemory) or disk, "
            "or let it be written to"
        )
    return "Redis, which wakes workers, does not answer"
