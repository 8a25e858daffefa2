"""The one file that knows the broker. It wakes workers and carries job ids, nothing else.

A lost or doubled message does no harm: the database says what is to be done, and idle workers ask it.
"""

import logging
from collections.abc import Callable

import redis
from celery import Celery
from sqlalchemy.exc import SQLAlchemyError

from actograph.contract.errors import ServiceUnavailable
from storage.broker import broker_acks, wake_message
from storage.index.database import Database
from storage.queue import routing

log = logging.getLogger(__name__)

DRAIN_TASK = "actograph.drain"
#: read by nobody; Celery wants one to begin with
QUEUE = routing.PREFIX
PRIORITIES = list(range(10))
SEPARATOR = ":"
#: a write that says whether Redis takes messages; it is gone by itself
_PROBE = f"{routing.PREFIX}-probe"


def celery_app(broker_url: str) -> Celery:
    """A Celery app with the settings that both ends of the queue must share."""
    broker_acks.install()
    app = Celery("actograph", broker=broker_url, set_as_current=False)
    app.conf.update(
        task_default_queue=QUEUE,
        task_ignore_result=True,
        task_default_priority=5,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
        broker_transport_options={
            "priority_steps": PRIORITIES,
            "sep": SEPARATOR,
            # queues of one priority in turn
            "queue_order_strategy": "round_robin",
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
        # nobody asks Celery about its workers: the index knows them
        worker_enable_remote_control=False,
    )
    return app


class Broker:
    """Wakes workers for jobs. `database` says who can serve them."""

    def __init__(self, url: str, database: Database) -> None:
        self._database = database
        self._redis: redis.Redis = redis.Redis.from_url(
            url, socket_timeout=5, socket_connect_timeout=5, retry=None
        )
        #: why the last message, or probe, was not taken; None if it was
        self.trouble: str | None = None

    def wake(self, job_id: str, priority: int, queue: str | None = None) -> bool:
        """Say that a job may have work. False if the broker cannot be reached or takes no message.

        The message goes where a worker that can serve the job reads it: to `queue`, if the caller has just
        looked that up. A failure needs no other answer: idle workers find the job in the index.
        """
        try:
            if queue is None:
                with self._database.read() as session:
                    queue = routing.queue_of_job(session, job_id)
        except SQLAlchemyError:
            return False
        if queue is None:
            return True
        message = wake_message.encode(DRAIN_TASK, job_id, queue, priority)
        name = wake_message.list_name(queue, priority, SEPARATOR)
        return self._takes(lambda: self._redis.lpush(name, message))

    def probe(self) -> bool:
        """Whether Redis takes a write now; `trouble` says why not."""
        return self._takes(lambda: self._redis.set(_PROBE, 1, px=1000))

    def messages(self) -> int:
        """Messages that no worker has taken yet.

        Raises:
            ServiceUnavailable: the broker does not answer.
        """
        try:
            lists = list(self._redis.scan_iter(f"{routing.PREFIX}.*", _type="list"))
            with self._redis.pipeline(transaction=False) as pipe:
                for name in lists:
                    pipe.llen(name)
                return sum(pipe.execute())
        except redis.RedisError as error:
            raise ServiceUnavailable("the broker does not answer") from error

    def ping(self) -> None:
        """Raises ServiceUnavailable where the broker does not answer."""
        try:
            self._redis.ping()
        except redis.RedisError as error:
            raise ServiceUnavailable("the broker does not answer") from error

    def close(self) -> None:
        self._redis.close()

    def _takes(self, write: Callable[[], object]) -> bool:
        try:
            write()
        except (redis.RedisError, OSError) as error:
            trouble = _words(error)
            if self.trouble is None:
                log.warning("%s; workers find jobs by asking the index", trouble)
            self.trouble = trouble
            return False
        if self.trouble is not None:
            log.warning("Redis takes messages again")
        self.trouble = None
        return True


def _words(error: Exception) -> str:
    if isinstance(error, redis.ResponseError):
        return (
            f"Redis refuses messages that wake workers ({error}); give it more memory (maxmemory) or disk, "
            "or let it be written to"
        )
    return "Redis, which wakes workers, does not answer"
