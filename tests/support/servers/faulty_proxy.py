"""A proxy in front of an S3 server that fails as it is told to, and notes what was asked.

Bytes pass unchanged but for one header: `Connection: close`, so that every request comes on a connection
of its own and can be failed by itself. Neither that header nor the address that we connect to is signed,
and the Host header that the client signed is passed on: signatures stay valid.
"""

import random
import re
import select
import socket
import socketserver
import struct
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, Self

#: what happens to each request: pass it on; answer 503; hang up at once, or in the middle of the answer;
#: wait before it is passed on
Mode = Literal["pass", "unavailable", "drop", "cut", "slow"]
_HEAD_END = b"\r\n\r\n"
_CHUNK = 1 << 16
_DRAIN_SECONDS = 0.2
_BODY = (
    b'<?xml version="1.0" encoding="UTF-8"?>\n'
    b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
)
_REFUSAL = (
    b"HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(_BODY), _BODY)
)


@dataclass(frozen=True, kw_only=True)
class Request:
    """One request, as the client sent it."""

    method: str
    #: path and query
    target: str
    #: the Range header, "" without one
    range: str
    mode: Mode


class FaultyProxy:
    """Listens while the context lasts; `mode` may be changed at any time and holds for new requests."""

    def __init__(self, port: int, *, slow_seconds: float = 2.0) -> None:
        self._upstream = ("127.0.0.1", port)
        self._slow_seconds = slow_seconds
        self._lock = threading.Lock()
        self._requests: list[Request] = []
        self.mode: Mode = "pass"
        proxy = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                with suppress(OSError):  # either end hung up
                    proxy._serve(self.request)

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            block_on_close = False
            request_queue_size = 128

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def take_requests(self) -> list[Request]:
        """Requests since the last call."""
        with self._lock:
            taken, self._requests = self._requests, []
        return taken

    def _serve(self, client: socket.socket) -> None:
        head = b""
        while _HEAD_END not in head:
            more = client.recv(_CHUNK)
            if not more:
                return
            head += more
        mode = self.mode
        self._note(head, mode)
        if mode == "unavailable":
            client.sendall(_REFUSAL)
            _drain(client)
            return
        if mode == "drop":
            # a reset, not an orderly end
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return
        if mode == "slow":
            time.sleep(self._slow_seconds)
        with socket.create_connection(self._upstream, timeout=60) as server:
            line, _, rest = head.partition(b"\r\n")
            rest = re.sub(rb"(?im)^connection:[^\r]*\r\n", b"", rest, count=1)
            server.sendall(line + b"\r\nConnection: close\r\n" + rest)
            _relay(client, server, random.randrange(1, 4000) if mode == "cut" else None)

    def _note(self, head: bytes, mode: Mode) -> None:
        lines = head.partition(_HEAD_END)[0].decode("latin-1").split("\r\n")
        method, target, _ = lines[0].split(" ", 2)
        headers = {name.lower(): value.strip() for name, _, value in (x.partition(":") for x in lines[1:])}
        with self._lock:
            self._requests.append(
                Request(method=method, target=target, range=headers.get("range", ""), mode=mode)
            )


def _relay(client: socket.socket, server: socket.socket, most: int | None) -> None:
    """Both ways until the server ends, or until `most` bytes of its answer have passed."""
    ends = [client, server]
    while True:
        for end in select.select(ends, [], [], 120)[0]:
            data = end.recv(_CHUNK)
            if end is client:
                if not data:
                    ends.remove(client)
                    server.shutdown(socket.SHUT_WR)
                    continue
                server.sendall(data)
                continue
            if not data:
                return
            client.sendall(data if most is None else data[:most])
            if most is not None:
                most -= len(data)
                if most <= 0:
                    return


def _drain(client: socket.socket) -> None:
    """Take in what the client is still sending: with unread bytes a close would lose the answer."""
    client.shutdown(socket.SHUT_WR)
    client.settimeout(_DRAIN_SECONDS)
    with suppress(TimeoutError):
        while client.recv(_CHUNK):
            pass
