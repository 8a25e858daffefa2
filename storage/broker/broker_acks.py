"""Messages are not acknowledged: Redis needs no room for those that a worker has taken.

A message only says that a job may have work, and idle workers ask the index anyway, so one that is lost
with its worker costs a few seconds. kombu's own bookkeeping costs more. Where Redis has no memory left it
cannot write down that a message was taken, and the worker ends. Where Redis goes away while a message is
acknowledged, the worker never asks for another: https://github.com/celery/celery/issues/10302
"""

from typing import Any

from kombu.transport import redis as transport


class Unacknowledged(transport.QoS):
    """Keeps no account of messages."""

    def append(self, message: Any, delivery_tag: Any) -> None:
        """A message was taken."""

    def ack(self, delivery_tag: Any) -> None:
        """A message's task has ended."""

    def reject(self, delivery_tag: Any, requeue: bool = False) -> None:
        """A message's worker was lost, or gave its queue up; whoever is idle finds the job."""

    def restore_visible(self, *_: Any, **__: Any) -> None:
        """No message is put back: none is waiting for an acknowledgement."""


def _bind_nothing(*_: Any, **__: Any) -> None:
    """Messages go to queues by name; kombu's table of bindings, which takes a write, is not needed."""


def _no_size(*_: Any, **__: Any) -> int:
    """Nobody reads the length of a declared queue, which kombu asks for in a transaction.

    Redis refuses every transaction while it has no memory left.
    """
    return 0


def install() -> None:
    """For every connection to a Redis broker that this process makes."""
    transport.Channel.QoS = Unacknowledged
    transport.Channel._size = _no_size  # type: ignore[method-assign]
    transport.Channel._queue_bind = _bind_nothing  # type: ignore[method-assign]
