"""The client and the command line against the real application, over a wire that a test may cut."""

from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import parse_qsl

import pytest
from fastapi import FastAPI
from starlette.responses import Response

from actograph.cli import models
from actograph.client import Client, transport
from actograph.contract import base
from actograph.contract.resources import Score
from tests.integration.api.conftest import EMBED, Keyed, Service
from tests.support.command_line import Run, runner
from tests.support.servers.application import Application

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
#: name of the first scorer's verdict
STRICT = "exact_match,strict-match"


@dataclass
class Seen:
    """A request that came in."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes = b""


class Wire:
    """Serves an application, notes the requests, and fails those that a test wants to fail."""

    def __init__(self, app: FastAPI) -> None:
        self._app, self.state = app, app.state
        self.seen: list[Seen] = []
        #: what the next requests meet, each used once: an answer in place of the application's, "drop" (not
        #: served) or "lose" (served, not answered)
        self.faults: list[Response | str] = []
        #: the next event streams break off after so many events
        self.stream_cuts: list[int] = []
        #: the next downloads of files break off after so many bytes
        self.download_cuts: list[int] = []
        self.url = ""

    def paths(self, method: str = "GET") -> list[str]:
        return [one.path for one in self.seen if one.method == method]

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        seen = Seen(
            scope["method"],
            scope["raw_path"].decode(),
            dict(parse_qsl(scope["query_string"].decode())),
            {name.decode(): value.decode() for name, value in scope["headers"]},
        )
        self.seen.append(seen)
        fault = self.faults.pop(0) if self.faults else None

        async def noted() -> Message:
            message = cast(Message, await receive())
            seen.body += message.get("body", b"")
            return message

        async def lost(_: Message) -> None:
            pass

        if isinstance(fault, Response):
            while (await noted()).get("more_body"):
                pass
            await fault(scope, receive, send)
        elif fault == "lose":
            await self._app(scope, noted, lost)
        elif fault is None:
            await self._app(scope, noted, self._cut(seen.path, send))
        if isinstance(fault, str):
            _hang_up(send)

    def _cut(self, path: str, send: Send) -> Send:
        cuts = {"/events": (self.stream_cuts, b"\n\n"), "/files/": (self.download_cuts, b"")}
        for part, (places, unit) in cuts.items():
            if part in path and places:
                return _cut_after(places.pop(0), unit, send)
        return send


def _cut_after(left: int, unit: bytes, send: Send) -> Send:
    """Hang up after so many bytes, or events; a ping is none."""

    async def limited(message: Message) -> None:
        nonlocal left
        if message["type"] != "http.response.body" or left < 0:
            await send(message)
            return
        body: bytes = message["body"]
        pieces = [part + unit for part in body.split(unit) if part] if unit else [body[:left], body[left:]]
        for piece in pieces:
            counts = b"id:" in piece if unit else len(piece)
            if counts > left:
                left = -1
                _hang_up(send)
                return
            left -= counts
            await send({"type": "http.response.body", "body": piece, "more_body": True})

    return limited


def _hang_up(send: Any) -> None:
    """Close the connection in place of an answer, or of its rest; what was sent arrives."""
    send.__self__.transport.close()


def problem(status: int, code: str, detail: str = "refused") -> Response:
    """An error of the service."""
    said = base.OpenAIError(message=detail, type="invalid_request_error", code=code)
    body = base.Problem(title="refused", status=status, detail=detail, errors=[], error=said)
    return Response(body.model_dump_json(), status, media_type="application/problem+json")


@pytest.fixture
def wire(service: Service) -> Iterator[Wire]:
    yield from _served(service)


@pytest.fixture
def keyed_wire(keyed: Keyed) -> Iterator[Wire]:
    """The wire of a service with keys."""
    yield from _served(keyed)


def _served(service: Service) -> Iterator[Wire]:
    made = Wire(service.app)
    served = Application(cast(FastAPI, made))
    made.url = served.url
    yield made
    served.stop()


@pytest.fixture
def client(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """Repeats at once."""
    monkeypatch.setattr(transport, "FIRST_DELAY_SECONDS", 0.01)
    with Client(wire.url, "", retries=3) as made:
        yield made


@pytest.fixture
def run(wire: Wire, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command line; gives exit status, stdout and stderr."""
    monkeypatch.setattr(transport, "FIRST_DELAY_SECONDS", 0.01)
    monkeypatch.setattr(models, "LOOK_SECONDS", 0.0)
    monkeypatch.setenv("ACTOGRAPH_URL", wire.url)
    monkeypatch.setenv("TERM", "dumb")
    return runner(capsys)


def graded(service: Service, verdicts: str = "yn", **changes: Any) -> tuple[str, list[str]]:
    """A completed job with sessions: its id and theirs.

    Args:
        verdicts: of each sample, "y" or "n".
    """
    inputs = [{"prompt": f"prompt {i}"} for i in range(len(verdicts))]
    job_id = service.submit(inputs=inputs, **changes)
    made = [
        service.finish(
            lease,
            tensors=EMBED,
            correct=verdict == "y",
            scores={STRICT: Score(value=float(verdict == "y"))},
        )
        for lease, verdict in zip(service.claim(job_id, len(verdicts)), verdicts, strict=True)
    ]
    return job_id, [one for one in made if one is not None]
