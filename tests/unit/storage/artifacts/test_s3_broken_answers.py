"""The S3 store against a server whose answers break off: an error in bounded time, never a hang."""

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from actograph.contract.errors import ServiceUnavailable
from storage.artifacts.s3 import S3Store
from tests.support.servers import s3


class Breaking:
    """Answers every request with the same bytes and hangs up; keeps the heads of the requests."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self.heads: list[bytes] = []
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return  # closed
            with client:
                head = b""
                while b"\r\n\r\n" not in head and (more := client.recv(1 << 16)):
                    head += more
                self.heads.append(head)
                client.sendall(self._answer)
                client.shutdown(socket.SHUT_WR)
                while client.recv(1 << 16):
                    pass

    def close(self) -> None:
        self._listening.close()


@pytest.fixture(params=[b"HTTP/1.1 100 C", b"HTTP/1.1 100 Continue\r\n", b"HTTP/1.1 2", b""])
def server(request: pytest.FixtureRequest) -> Iterator[Breaking]:
    made = Breaking(request.param)
    yield made
    made.close()


def test_an_upload_fails_where_the_answer_breaks_off(
    server: Breaking, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = s3.environment(server.url, os.environ)
    for name in [name for name in os.environ if name.startswith("AWS_") and name not in wanted]:
        monkeypatch.delenv(name)
    for name, value in wanted.items():
        monkeypatch.setenv(name, value)
    store = S3Store("bucket", spool=tmp_path, attempts=2)
    (tmp_path / "file").write_bytes(b"x" * 1000)
    said: list[ServiceUnavailable] = []

    def upload() -> None:
        try:
            store.upload("files/file_" + "1b" * 16, tmp_path / "file")
        except ServiceUnavailable as error:
            said.append(error)

    uploading = threading.Thread(target=upload, daemon=True)
    uploading.start()
    uploading.join(60)
    assert said, "the upload hangs" if uploading.is_alive() else "the upload counts as done"
    assert len(server.heads) == 2
    assert all(head.startswith(b"PUT /bucket/") for head in server.heads)
    assert not any(b"expect:" in head.lower() for head in server.heads)
