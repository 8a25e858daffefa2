"""The S3 store on a bad line, against a small server of ours that fails as it is told to."""

import io
import os
import re
import threading
from collections.abc import Iterator
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from actograph.contract.errors import ServiceUnavailable
from storage.artifacts.s3 import S3Store
from tests.support.servers.s3 import environment

DATA = bytes(range(256)) * 1000
KEY = "files/file_" + "1b" * 16


class FlakyServer(ThreadingHTTPServer):
    """Serves DATA under any key. Each GET first takes the next fault, if one is left:
    a status to answer with, or (as a negative number) the bytes to send before it hangs up.
    Each PUT gets the bytes of `answer`, which break off."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), FlakyHandler)
        self.faults: list[int] = []
        self.ranges: list[str] = []
        self.answer = b""
        self.puts: list[Message] = []


class FlakyHandler(BaseHTTPRequestHandler):
    server: FlakyServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        wanted = self.headers["Range"]
        self.server.ranges.append(wanted)
        fault = self.server.faults.pop(0) if self.server.faults else 0
        if fault > 0:
            self.send_response(fault)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", wanted)
        assert match
        start, stop = int(match[1]), min(int(match[2]) + 1, len(DATA))
        self.send_response(206)
        self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(DATA)}")
        self.send_header("Content-Length", str(stop - start))
        self.end_headers()
        body = DATA[start:stop]
        self.wfile.write(body[:-fault] if fault else body)
        self.close_connection = bool(fault)

    def do_PUT(self) -> None:
        self.server.puts.append(self.headers)
        self.rfile.read(int(self.headers["Content-Length"]))
        self.wfile.write(self.server.answer)
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FlakyServer]:
    monkeypatch.setattr("storage.artifacts.s3.time.sleep", lambda seconds: None)
    with FlakyServer() as server:
        wanted = environment(f"http://127.0.0.1:{server.server_port}", os.environ)
        for name in [name for name in os.environ if name.startswith("AWS_") and name not in wanted]:
            monkeypatch.delenv(name)
        for name, value in wanted.items():
            monkeypatch.setenv(name, value)
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("fault", [500, 503])
def test_a_refused_request_is_repeated(server: FlakyServer, fault: int) -> None:
    server.faults = [fault, fault]
    assert S3Store("bucket").read(KEY, 10, 1000) == DATA[10:1010]
    assert server.ranges == ["bytes=10-1009"] * 3


def test_a_download_that_breaks_off_goes_on_where_it_ended(server: FlakyServer) -> None:
    server.faults = [-100_000, -50_000, -1]
    pieces = list(S3Store("bucket").stream(KEY, 5, 200_005, chunk=1000))
    assert b"".join(pieces) == DATA[5:200_005]
    starts = [int(re.findall(r"\d+", text)[0]) for text in server.ranges]
    assert starts[0] == 5
    assert starts == sorted(starts)
    assert starts[1] > 90_000  # nothing that had arrived was asked for again


def test_a_line_that_stays_bad_is_reported(server: FlakyServer) -> None:
    server.faults = [-1] * 100
    with pytest.raises(ServiceUnavailable, match="could not be downloaded"):
        S3Store("bucket").read(KEY, 0, 1000)
    assert len(server.ranges) == 6


@pytest.mark.parametrize("answer", [b"HTTP/1.1 100 C", b"HTTP/1.1 100 Continue\r\n", b"HTTP/1.1 2", b""])
def test_an_upload_fails_where_the_answer_breaks_off_and_never_hangs(
    server: FlakyServer, tmp_path: Path, answer: bytes
) -> None:
    server.answer = answer
    with pytest.raises(ServiceUnavailable):
        S3Store("bucket", spool=tmp_path, attempts=2).upload(KEY, io.BytesIO(b"x" * 1000))
    assert len(server.puts) == 2
    assert not any("expect" in headers for headers in server.puts)
