"""`actograph smoke` on a sound service, and behind a proxy that makes it lie."""

import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import numpy as np
import pytest

from actograph.cli.main import main
from actograph.client import Client, transport
from actograph.contract.operations import NewKey
from actograph.smoke import FailureKind

#: (method, path, status, body) -> the status and body that the client gets
Change = Callable[[str, str, int, bytes], tuple[int, bytes]]
Run = Callable[..., tuple[int, list[Any]]]


@dataclass
class Proxy:
    """Serves a service under a path, and changes its answers."""

    url: str = ""
    change: Change = lambda _method, _path, status, body: (status, body)


@pytest.fixture
def proxy(service: Any) -> Iterator[Proxy]:
    state = Proxy()
    upstream = httpx.Client(base_url=service.url, timeout=60)

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            path = self.path.removeprefix("/lab")
            sent = {k: v for k, v in self.headers.items() if k.lower() not in ("host", "connection")}
            found = upstream.request(self.command, path, content=body, headers=sent)
            status, content = state.change(self.command, path, found.status_code, found.content)
            self.send_response(status)
            for name, value in found.headers.items():
                if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_DELETE = answer  # noqa: N815 (http.server's names)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_port}/lab"
    yield state
    server.shutdown()
    server.server_close()
    thread.join()
    upstream.close()


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setattr(transport, "FIRST_DELAY_SECONDS", 0.01)

    def smoke(url: str, *arguments: str) -> tuple[int, list[Any]]:
        code = main(["smoke", url, *arguments, "--format", "json"])
        return code, [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return smoke


def test_a_sound_service_passes_and_nothing_is_left(service: Any, proxy: Proxy, run: Run) -> None:
    code, steps = run(proxy.url, "--model", "tiny-qwen3")  # under a path
    assert (code, {step["outcome"] for step in steps}) == (0, {"ok"}), steps
    names = ["service", "queue", "model", "capture", "read again", "evaluation", "clean up"]
    assert [step["step"] for step in steps] == names
    with Client(service.url, "") as client:
        assert list(client.jobs.list()) == []
        assert list(client.sessions.list()) == []


def rows_changed(to: Callable[[Any], Any]) -> Change:
    """Tensors with other numbers, under the same header."""

    def change(_: str, path: str, status: int, body: bytes) -> tuple[int, bytes]:
        if "/tensors/" not in path or ("format=" in path and "safetensors" not in path):
            return status, body
        start = 8 + int.from_bytes(body[:8], "little")
        return status, body[:start] + to(np.frombuffer(body[start:], "<f4")).astype("<f4").tobytes()

    return change


def no_hooks(_: str, path: str, status: int, body: bytes) -> tuple[int, bytes]:
    if path.startswith("/v1/activations/sessions") and b'"hooks"' in body:
        answer = json.loads(body)
        for one in answer.get("data", [answer]):
            one["hooks"] = {}
        return status, json.dumps(answer).encode()
    return status, body


def growing() -> Callable[[Any], Any]:
    """Each read gives other numbers."""
    reads = iter(range(1, 1000))
    return lambda rows: rows + next(reads)


def test_activations_that_are_missing_wrong_or_changed_are_found(
    service: Any, proxy: Proxy, run: Run, subtests: pytest.Subtests
) -> None:
    lies: dict[str, Change] = {
        "no hooks": no_hooks,
        "zeros": rows_changed(np.zeros_like),
        "NaN": rows_changed(lambda rows: np.where(np.arange(len(rows)) == 3, np.nan, rows)),
        "changed": rows_changed(growing()),
    }
    for name, lie in lies.items():
        with subtests.test(name):
            proxy.change = lie
            code, steps = run(proxy.url)
            assert code == FailureKind.CAPTURE, steps
            assert steps[-1]["step"] == "clean up", "what it made is deleted after a failure too"
    with Client(service.url, "") as client:
        assert list(client.jobs.list()) == []


def problem(status: int, code: str) -> bytes:
    error = {"message": "no", "type": "invalid_request_error", "code": code}
    return json.dumps({"title": "no", "status": status, "detail": "no", "error": error}).encode()


def full(method: str, path: str, status: int, body: bytes) -> tuple[int, bytes]:
    return (422, problem(422, "quota_exceeded")) if (method, path) == ("POST", "/v1/jobs") else (status, body)


def test_other_faults_have_statuses_of_their_own(
    service: Any, proxy: Proxy, run: Run, subtests: pytest.Subtests
) -> None:
    page = b"<html>hello</html>"
    cases: dict[str, tuple[Change, FailureKind]] = {
        "another program": (lambda *_: (200, page), FailureKind.NOT_ACTOGRAPH),
        "a proxy without its service": (lambda *_: (502, page), FailureKind.UNREACHABLE),
        "a full store": (full, FailureKind.STORE),
        "another version": (
            lambda _method, _path, status, body: (status, body.replace(b'"version":"0.1', b'"version":"9.1')),
            FailureKind.ROUTES,
        ),
    }
    for name, (change, kind) in cases.items():
        with subtests.test(name):
            proxy.change = change
            code, steps = run(proxy.url)
            assert (code, steps[-1]["outcome"]) == (kind, "FAILED"), steps


def test_another_model_a_pause_and_a_missing_key(
    service: Any, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(service.url, "--model", "other")[0] == FailureKind.MODEL
    with Client(service.url, "") as client:
        client.queue.pause("the disk is changed")
        assert run(service.url)[0] == FailureKind.STORE
        client.queue.resume()
        key = client.keys.create(NewKey(name="root", role="admin")).key
    assert run(service.url)[0] == FailureKind.KEY
    monkeypatch.setenv("ACTOGRAPH_API_KEY", "acto_" + "0" * 43)
    assert run(service.url)[0] == FailureKind.KEY
    monkeypatch.setenv("ACTOGRAPH_API_KEY", key)
    assert run(service.url)[0] == 0
    assert run("http://127.0.0.1:9")[0] == FailureKind.UNREACHABLE


def test_every_kind_has_a_place_in_the_docs(pytestconfig: pytest.Config) -> None:
    page = (pytestconfig.rootpath / "docs/operate/running.md").read_text(encoding="utf-8")
    assert [kind.name for kind in FailureKind if f"| {kind.value} | " not in page] == []
