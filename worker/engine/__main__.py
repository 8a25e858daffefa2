"""The engine's process: `python -m worker.engine SOCKET`, started by a host (`worker.engine.client`).

It owns the device. It knows no index, no store and no network; whatever it says goes through the channel. It
ends with its host.
"""

import logging
import os
import socket
import sys

from actograph.settings import Settings
from storage.redaction import set_up_logging
from worker.engine.channel import Channel, ChannelClosed


def main() -> int:
    """Serve the host until it closes the channel."""
    set_up_logging(Settings())
    from worker.engine.service import DEVICE_LOST, Service  # torch, in seconds

    service = Service(Channel(socket.socket(fileno=int(sys.argv[1]))))
    try:
        service.serve()
    except ChannelClosed:
        return 0
    # a lost device may never let the interpreter end
    logging.shutdown()
    os._exit(DEVICE_LOST)


if __name__ == "__main__":
    sys.exit(main())
