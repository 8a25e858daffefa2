"""Which queues this worker reads: those of the model that it holds, and of those that it may load.

The child process knows what it holds, and Celery's parent process reads the queues. The child leaves the
names in a file, and the parent looks there several times a second.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from celery import bootsteps

LOOK_SECONDS = 0.1


class Subscription:
    """The file, in the folder that parent and child share."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "queues"

    def write(self, queues: Sequence[str]) -> None:
        """In the child: read these from now on; none while no model is there."""
        aside = self._path.with_suffix(".new")
        aside.write_text(json.dumps(list(queues)), encoding="utf-8")
        aside.replace(self._path)

    def read(self) -> list[str]:
        """In the parent: none before the child has written any."""
        try:
            queues: list[str] = json.loads(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return []
        return queues


class SubscriptionStep(bootsteps.StartStopStep):  # type: ignore[misc]
    """Part of Celery's consumer: keeps what is read equal to what the child wants.

    A message that arrives while its queue is given up goes back there: kombu requeues it.
    """

    requires = ("celery.worker.consumer.tasks:Tasks",)
    #: set by worker/__main__.py
    subscription: Subscription | None = None

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        self._timer: Any = None

    def start(self, parent: Any) -> None:
        self._follow(parent)
        self._timer = parent.timer.call_repeatedly(LOOK_SECONDS, self._follow, (parent,))

    def stop(self, parent: Any) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    shutdown = stop

    def _follow(self, parent: Any) -> None:
        if self.subscription is None or parent.task_consumer is None:
            return
        wanted = self.subscription.read()
        reading = set(parent.app.amqp.queues.consume_from)
        for queue in reading.difference(wanted):
            parent.cancel_task_queue(queue)
        for queue in wanted:
            if queue not in reading:
                parent.add_task_queue(queue)
