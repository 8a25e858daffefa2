"""A message whose acknowledgement fails does not count as being worked on for ever.

kombu removes a message from Redis first and from its own count after that. Where Redis goes away at that
very moment the count stays up; a worker that takes one message at a time then never asks for another,
and notices no broken connection because it sends nothing. https://github.com/celery/celery/issues/10302
"""

from typing import Any

from kombu.transport import redis as transport
from kombu.transport import virtual


class CountedOnce(transport.QoS):
    """Forgets a message even where Redis could not be told: the index knows what is to be done."""

    def ack(self, delivery_tag: Any) -> None:
        try:
            super().ack(delivery_tag)  # type: ignore[no-untyped-call]
        finally:
            virtual.QoS.ack(self, delivery_tag)  # type: ignore[no-untyped-call]

    def reject(self, delivery_tag: Any, requeue: bool = False) -> None:
        try:
            super().reject(delivery_tag, requeue)  # type: ignore[no-untyped-call]
        finally:
            virtual.QoS.ack(self, delivery_tag)  # type: ignore[no-untyped-call]


def install() -> None:
    """For every connection to a Redis broker that this process makes."""
    transport.Channel.QoS = CountedOnce
