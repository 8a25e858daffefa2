"""An S3 server that refuses checksum headers, as older servers do: a proxy in front of another server."""

import http.client
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

_ERROR = (
    '<?xml version="1.0"?><Error><Code>{code}</Code><Message>Header {name} is not supported</Message></Error>'
)
_CHECKSUMS = ("x-amz-checksum", "x-amz-sdk-checksum", "x-amz-trailer")


class StrictS3:
    """Counts the requests that it refused and those that had a Content-MD5.

    Args:
        behind: URL of the server that answers.
        code: error code of refusals.
    """

    def __init__(self, behind: str, code: str = "NotImplemented") -> None:
        self.refused: Counter[str] = Counter()
        self.with_md5: Counter[str] = Counter()
        counts, address = self, urlsplit(behind)

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                """Say nothing."""

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                for name, value in self.headers.items():
                    checks = name.lower().startswith(_CHECKSUMS)
                    if checks or (name.lower() == "content-encoding" and "aws-chunked" in value):
                        counts.refused[self.command] += 1
                        text = _ERROR.format(code=code, name=name).encode()
                        self.reply(501 if code == "NotImplemented" else 400, text, {})
                        return
                counts.with_md5[self.command] += "Content-MD5" in self.headers
                connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)
                try:
                    connection.request(self.command, self.path, body or None, dict(self.headers))
                    answer = connection.getresponse()
                    self.reply(answer.status, answer.read(), dict(answer.getheaders()))
                finally:
                    connection.close()

            def reply(self, status: int, body: bytes, headers: dict[str, str]) -> None:
                self.send_response(status)
                for name, value in headers.items():
                    if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                        self.send_header(name, value)
                length = headers.get("Content-Length", "0") if self.command == "HEAD" else str(len(body))
                self.send_header("Content-Length", length)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

        for method in ("GET", "PUT", "POST", "DELETE", "HEAD"):
            setattr(Handler, f"do_{method}", Handler.answer)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @contextmanager
    def serving(self) -> Iterator["StrictS3"]:
        thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()
