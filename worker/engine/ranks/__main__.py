"""A rank other than 0: `python -m worker.engine.ranks SOCKET`. Rank 0 starts it, and it ends with rank 0."""

import logging
import os
import socket
import sys
import threading
from queue import SimpleQueue
from typing import Any

from actograph.settings import Settings
from storage.redaction import set_up_logging
from worker.engine.channel import Channel, ChannelClosed

log = logging.getLogger(__name__)

_Message = tuple[dict[str, Any], bytes]


def main() -> None:
    """Follow rank 0 until it closes the channel."""
    set_up_logging(Settings())
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    told: SimpleQueue[_Message] = SimpleQueue()
    threading.Thread(target=_read, args=(channel, told), name="leader-reader", daemon=True).start()
    from worker.engine.ranks.follow import follow  # torch, in seconds

    try:
        follow(channel, told.get)
    except BaseException:
        log.exception("this rank has failed")
    logging.shutdown()
    os._exit(1)  # it may hold a lost device, or wait for a rank that has gone


def _read(channel: Channel, told: "SimpleQueue[_Message]") -> None:
    try:
        while True:
            told.put(channel.receive())
    except ChannelClosed:
        os._exit(0)  # wherever the main thread waits


if __name__ == "__main__":
    main()
