"""A receiver of webhooks: notes what it gets and answers as it is told."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Receiver:
    """Answers as `answers` says, one after the other, then as `then` says."""

    answers: list[int] = field(default_factory=list)
    then: int = 204
    #: headers with small letters, `:path` among them, and bodies
    got: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    #: while it is not set, no request is answered
    open: threading.Event = field(default_factory=threading.Event)
    port: int = 0

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.host}/hook?of=tests"

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [json.loads(body) for _, body in self.got]


@contextmanager
def running() -> Iterator[Receiver]:
    """A receiver on a free port of loopback, which redirects to itself where it answers 3xx."""
    kept = Receiver()
    kept.open.set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            kept.got.append(({k.lower(): v for k, v in self.headers.items()} | {":path": self.path}, body))
            kept.open.wait(30)
            self.send_response(kept.answers.pop(0) if kept.answers else kept.then)
            self.send_header("location", f"http://{kept.host}/elsewhere")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    kept.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield kept
    finally:
        kept.open.set()
        server.shutdown()
        thread.join()
        server.server_close()
