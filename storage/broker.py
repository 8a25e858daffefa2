"""The one file that knows the broker. It wakes workers and carries job ids, nothing else.

A lost or doubled message does no harm: the database says what is to be done, and the API's
reconciler wakes jobs again whose message is gone.
"""

import re

import redis
from celery import Celery
from sqlalchemy.exc import SQLAlchemyError

from actograph.contract.errors import ServiceUnavailable
from storage import broker_acks, routing, wake_message
from storage.database import Database

DRAIN_TASK = "actograph.drain"
#: read by nobody; Celery wants one to begin with
QUEUE = routing.PREFIX
PRIORITIES = list(range(10))
SEPARATOR = ":"
#: a time slice is about a minute; no message may come near this
VISIBILITY_TIMEOUT_SECONDS = 3600

_JOB_ID = re.compile(rb"job_[0-9a-f]{32}")
_HAS_PRIORITY = re.compile(rf"{SEPARATOR}[1-9]$")


def celery_app(broker_url: str) -> Celery:
    """A Celery app with the settings that both ends of the queue must share."""
    broker_acks.install()
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

    def wake(self, job_id: str, priority: int, queue: str | None = None) -> bool:
        """Say that a job may have work. False where the broker cannot be reached.

        The message goes where a worker that can serve the job reads it, which is `queue` where the caller
        has just looked. A failure needs no other answer: the reconciler wakes the job once the broker is
        back.
        """
        try:
            if queue is None:
                with self._database.read() as session:
                    queue = routing.queue_of_job(session, job_id)
            if queue is None:
                return True
            message = wake_message.encode(DRAIN_TASK, job_id, queue, priority)
            self._redis.lpush(wake_message.list_name(queue, priority, SEPARATOR), message)
        except (redis.RedisError, OSError, SQLAlchemyError):
            return False
        return True

    def waiting(self) -> dict[str, set[str]]:
        """Queue -> the jobs that have a message there; what a worker has taken is not counted.

        Raises:
            ServiceUnavailable: the broker does not answer.
        """
        found: dict[str, set[str]] = {}
        try:
            for name in self._lists():
                queue = name.rpartition(SEPARATOR)[0] if _HAS_PRIORITY.search(name) else name
                ids = found.setdefault(queue, set())
                ids.update(map(_job_id, self._redis.lrange(name, 0, -1)))
        except redis.RedisError as error:
            raise ServiceUnavailable("the broker does not answer") from error
        return found

    def waiting_job_ids(self) -> set[str]:
        """Jobs that have a message in some queue; errors as `waiting`."""
        return set[str]().union(*self.waiting().values())

    def _lists(self) -> list[str]:
        return [name.decode() for name in self._redis.scan_iter(f"{routing.PREFIX}.*", _type="list")]

    def ping(self) -> None:
        """Raises ServiceUnavailable where the broker does not answer."""
        try:
            self._redis.ping()
        except redis.RedisError as error:
            raise ServiceUnavailable("the broker does not answer") from error

    def close(self) -> None:
        self._redis.close()


def _job_id(message: bytes | str) -> str:
    """Read without parsing, since thousands may wait: a message names its job in plain text."""
    found = _JOB_ID.search(message if isinstance(message, bytes) else message.encode())
    return found.group().decode() if found else ""
