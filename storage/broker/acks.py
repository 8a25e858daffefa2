"""Messages without acknowledgement.

Idle workers read the index anyway, so a lost message costs a few seconds. kombu's acknowledgements cost
more: a Redis without free memory cannot store that a message was taken, and the worker ends. If Redis goes
away during an acknowledgement, the worker never takes another message
(https://github.com/celery/celery/issues/10302).
"""

from typing import Any

from kombu.transport import redis as transport


class Unacknowledged(transport.QoS):
    """Keeps no record of messages."""

    def append(self, message: Any, delivery_tag: Any) -> None:
        """Called when a message was taken."""

    def ack(self, delivery_tag: Any) -> None:
        """Called when a message's task begins."""

    def reject(self, delivery_tag: Any, requeue: bool = False) -> None:
        """Called for a message that is not served; an idle worker finds the job in the index."""

    def restore_visible(self, *_: Any, **__: Any) -> None:
        """Puts no message back: none waits for an acknowledgement."""


def _bind_nothing(*_: Any, **__: Any) -> None:
    """Skip kombu's table of bindings, which takes a write; messages go to queues by name."""


def _no_size(*_: Any, **__: Any) -> int:
    """Skip the length of a declared queue; Redis refuses kombu's transaction while it has no free memory."""
    return 0


def install() -> None:
    """Use these for every Redis connection that kombu makes in this process."""
    transport.Channel.QoS = Unacknowledged
    transport.Channel._size = _no_size  # type: ignore[method-assign]
    transport.Channel._queue_bind = _bind_nothing  # type: ignore[method-assign]
