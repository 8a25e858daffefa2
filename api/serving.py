"""Serving with uvicorn: one process, or several behind one address.

The address is bound once and shared. uvicorn replaces a process that dies or hangs, and stops if a process
cannot start. All state that requests share is in the index, so any process can answer.
"""

import logging
import multiprocessing
import os
import signal
import socket
import sys
import threading
from tempfile import TemporaryDirectory

import uvicorn
from fastapi import FastAPI
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import Multiprocess

from actograph import redaction
from actograph.settings import Settings
from api.app import create_app
from api.heap import limit_arenas
from api.routes.service.metrics import FOLDER_VARIABLE

#: time that downloads get to finish after a signal; event streams end at once
GRACE_SECONDS = 5
#: shorter than Python's 5 ms, which a request waits for the interpreter after each query
SWITCH_SECONDS = 0.001
#: uvicorn replaces a process that does not answer for this time, which must include a slow start
HUNG_SECONDS = 120


def serve(settings: Settings) -> int:
    """Serve until a signal arrives; returns the exit status, 1 if a process cannot start."""
    config = uvicorn.Config(
        f"{__name__}:process_app",
        factory=True,
        host=settings.host,
        port=settings.port,
        workers=settings.api_processes,
        log_config=None,
        timeout_graceful_shutdown=GRACE_SECONDS,
        timeout_worker_healthcheck=HUNG_SECONDS,
    )
    shared = config.bind_socket()
    _disconnect_stalled(shared, settings.stalled_client_seconds)
    if settings.api_processes == 1:
        server = uvicorn.Server(config)
        server.run([shared])
        return 0 if server.started else 1
    with TemporaryDirectory(prefix="actograph-metrics-") as folder:
        # prometheus_client reads this when a process imports it
        os.environ[FOLDER_VARIABLE] = folder
        supervisor = Multiprocess(config, [shared])
        supervisor.run()
    return 1 if any(one.exitcode == STARTUP_FAILURE for one in supervisor.processes) else 0


def process_app() -> FastAPI:
    """Set up a serving process and create its application."""
    settings = Settings()
    set_up_logging(settings)
    limit_arenas()
    sys.setswitchinterval(SWITCH_SECONDS)
    if multiprocessing.parent_process() is not None:
        threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    return create_app(settings)


def _end_with_parent() -> None:
    """End this process if its supervisor is killed; it would hold the address for good."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


def _disconnect_stalled(listening: socket.socket, seconds: float) -> None:
    """Have the kernel close connections of clients that receive nothing for `seconds`.

    uvicorn waits for such a client for ever. Connections inherit the option (tcp(7)), which only Linux has.
    """
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, round(seconds * 1000))


def set_up_logging(settings: Settings) -> None:
    """Set up logging for the whole process."""
    redaction.set_up_logging(settings)
    # alembic reports every check of the schema at info
    logging.getLogger("alembic").setLevel(logging.WARNING)
