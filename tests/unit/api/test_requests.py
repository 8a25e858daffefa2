"""Byte ranges, loopback addresses and served names, each on its own."""

from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response

from actograph.contract.errors import UnknownModel
from actograph.contract.resources import Event
from actograph.loopback import is_loopback
from actograph.settings import Settings
from api.reading import downloads, sse
from api.reading.downloads import UnsatisfiableRange, parse_range
from api.served_models import ServedModels
from storage.artifacts.checked_files import CheckedFile


def test_ranges(subtests: pytest.Subtests) -> None:
    for header, window in [
        (None, None),
        ("bytes=0-0", (0, 1)),
        ("bytes=0-", (0, 100)),
        ("bytes=99-", (99, 100)),
        ("bytes=-1", (99, 100)),
        ("bytes=-100", (0, 100)),
        ("bytes=-101", (0, 100)),
        ("bytes=5-1000000", (5, 100)),
        ("bytes=5 - 9", (5, 10)),
        ("bytes=9-5", None),
        ("bytes=-", None),
        ("bytes=", None),
        ("bytes=1-2,4-5", None),
        ("items=1-2", None),
        ("bytes=+1-2", None),
        ("bytes=0-" + "9" * 50, None),
    ]:
        with subtests.test(header=header, window=window):
            assert parse_range(header, 100) == window


@pytest.mark.parametrize("header", ["bytes=100-", "bytes=100-200", "bytes=-0", "bytes=1000-1001"])
def test_ranges_beyond_the_file(header: str) -> None:
    with pytest.raises(UnsatisfiableRange) as caught:
        parse_range(header, 100)
    assert caught.value.headers == {"Content-Range": "bytes */100"}


class RemoteStore:
    """A store whose files are fetched from elsewhere."""

    def presigned_url(self, key: str) -> str:
        return f"https://store.example/{key}?signature=x"

    def size(self, key: str) -> int:
        return 100


def serve_remote(method: str, headers: dict[str, str]) -> Response:
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    request = Request({"type": "http", "method": method, "headers": raw})
    store: Any = RemoteStore()
    file = CheckedFile(store, "files/x", size=100, sha256="ab")
    return downloads.serve(request, store, file, media_type="text/plain", filename="ü.txt", redirects=True)


def test_a_file_in_a_remote_store_is_fetched_from_there() -> None:
    answer = serve_remote("GET", {"Range": "bytes=0-1"})
    assert answer.status_code == 307
    assert answer.headers["location"] == "https://store.example/files/x?signature=x"
    assert serve_remote("GET", {"If-None-Match": '"ab"'}).status_code == 304


def test_head_is_answered_here_as_the_url_is_signed_for_get() -> None:
    answer = serve_remote("HEAD", {})
    assert (answer.status_code, answer.headers["content-length"], answer.body) == (200, "100", b"")
    assert answer.headers["content-disposition"] == "attachment; filename*=UTF-8''%C3%BC.txt"


def test_no_range_lies_in_an_empty_file() -> None:
    with pytest.raises(UnsatisfiableRange):
        parse_range("bytes=0-", 0)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.8.9.1", "::1", "localhost", "LOCALHOST", "localhost.", "::ffff:127.0.0.1"]
)
def test_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host",
    [
        None,
        "",
        "0.0.0.0",
        "::",
        "10.0.0.1",
        "example.org",
        "localhost.example.org",
        "::ffff:10.0.0.1",
        "127.1",
    ],
)
def test_not_loopback(host: str | None) -> None:
    assert not is_loopback(host)


def test_the_first_model_to_claim_a_name_has_it() -> None:
    models = ServedModels(Settings(model="a=org/x", allowed_models=("b=org/x", "org/y", "a=org/z")))
    assert list(models.names) == ["a", "b", "org/y"]
    assert models.default == "a"
    assert [models.find(n) for n in ("a", "b", "org/x", "org/y", "org/z")] == ["a", "b", "a", "org/y", "a"]
    with pytest.raises(UnknownModel, match="served: a, b, org/y"):
        models.require("c")


def test_a_service_without_models_says_how_to_name_one() -> None:
    models = ServedModels(Settings())
    assert models.default is None
    with pytest.raises(UnknownModel, match="ACTOGRAPH_MODEL"):
        models.require("x")


def test_an_event_is_one_message_whatever_its_text_holds() -> None:
    event = Event(id=7, job_id="job_x", event="job.failed", created_at=1.5, data={"m": "a\nb\r\n\nid: 9"})
    lines = sse.encode(event).split("\n")
    assert lines[:2] == ["id: 7", "event: job.failed"]
    assert Event.model_validate_json(lines[2].removeprefix("data: ")) == event
    assert lines[3:] == ["", ""]
