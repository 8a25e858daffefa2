"""A started application on a socket of this process."""

import socket
import threading

import uvicorn
from fastapi import FastAPI


class Application:
    """An application on one port, which it keeps when it stops and starts again."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self._port = 0
        self.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        self._listener = socket.socket()
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind(("127.0.0.1", self._port))
        self._listener.listen()
        self._port = self._listener.getsockname()[1]
        self._server = uvicorn.Server(uvicorn.Config(self._app, lifespan="off", log_config=None))
        self._thread = threading.Thread(target=self._server.run, args=([self._listener],), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End streams, as a signal does, and the server."""
        self._app.state.services.stopping.set()
        self._server.should_exit = True
        self._thread.join(timeout=120)
        self._listener.close()
        self._app.state.services.stopping.clear()
