"""One serving process: uvicorn around the application."""

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from actograph import redaction
from actograph.settings import Settings
from api.app import create_app
from api.heap import limit_arenas

#: open event streams end at once; a download may go on for so long
GRACE_SECONDS = 5
#: Python's own 5 ms add up: a request waits for the interpreter after each query
SWITCH_SECONDS = 0.001


class Server(uvicorn.Server):
    """uvicorn, with event streams told to end as soon as the signal comes.

    `before_first` is called in a thread once everything is open, before the first connection is taken.
    A client that takes nothing of its answer for `stalled_seconds` is disconnected.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        app: FastAPI,
        stalled_seconds: float,
        before_first: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(config)
        self._app = app
        self._stalled_seconds = stalled_seconds
        self._before_first = before_first

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._before_first is not None:
            lifespan = self.lifespan
            open_all = lifespan.startup

            async def open_and_wait() -> None:
                await open_all()
                if not lifespan.should_exit and self._before_first is not None:
                    await asyncio.to_thread(self._before_first)

            lifespan.startup = open_and_wait
        await super().startup(sockets)
        for server in getattr(self, "servers", []):  # none where it could not start
            for listening in server.sockets:
                _disconnect_stalled(listening.fileno(), self._stalled_seconds)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        services = getattr(self._app.state, "services", None)
        if services is not None:
            services.stopping.set()
        super().handle_exit(sig, frame)


def serve(
    settings: Settings,
    *,
    shared: socket.socket | None = None,
    before_first: Callable[[], None] | None = None,
) -> int:
    """Serve until a signal ends it; returns the exit status.

    Args:
        shared: a bound socket that other processes take connections from too.
        before_first: see `Server`; where it raises OSError or EOFError the process ends.
    """
    limit_arenas()
    # a thread that computes gives the interpreter to a request that waits for it after so long
    sys.setswitchinterval(SWITCH_SECONDS)
    app = create_app(settings)
    server = Server(server_config(settings, app), app, settings.stalled_client_seconds, before_first)
    try:
        server.run([shared] if shared is not None else None)
    except (OSError, EOFError):
        if before_first is None or server.started:
            raise
        return 1  # who was asked is gone
    return 0 if server.started else 1


def server_config(settings: Settings, app: FastAPI | str = "") -> uvicorn.Config:
    """uvicorn's settings; without an app they are good for binding the address alone."""
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        log_config=None,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )


def _disconnect_stalled(listening: int, seconds: float) -> None:
    """Have the kernel end connections of this socket whose peer takes nothing of what was sent for so long.

    uvicorn waits for such a peer for ever. Connections inherit the option (tcp(7), TCP_USER_TIMEOUT), which
    Linux alone has.
    """
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        with socket.socket(fileno=os.dup(listening)) as same:
            same.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(seconds * 1000))


def set_up_logging(settings: Settings) -> None:
    """For the whole process."""
    redaction.set_up_logging(settings)
    # at info it announces itself with every look at the schema
    logging.getLogger("alembic").setLevel(logging.WARNING)
