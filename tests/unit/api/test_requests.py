"""Byte ranges, loopback addresses and served names, each on its own."""

from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response

from actograph.contract.errors import UnknownModel
from actograph.contract.resources import Event
from actograph.settings import Settings
from api.reading import downloads, sse
from api.served_models import ServedModels
from storage.artifacts.checked_files import CheckedFile


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


def test_the_first_model_to_claim_a_name_has_it() -> None:
    models = ServedModels(Settings(model="a=org/x", allowed_models=("b=org/x", "org/y", "a=org/z")))
    assert models.names == ["a", "b", "org/y"]
    assert [models.find(n) for n in ("a", "b", "org/x", "org/y", "org/z")] == ["a", "b", "a", "org/y", "a"]
    with pytest.raises(UnknownModel, match="served: a, b, org/y"):
        models.require("c")


def test_the_last_part_of_an_id_is_enough_if_one_model_has_it() -> None:
    models = ServedModels(Settings(model="q=Qwen/Qwen3", allowed_models=("a/small", "b/small", "c/small-2")))
    assert [models.find(name) for name in ("Qwen3", "small-2", "Qwen", "")] == ["q", "c/small-2", None, None]
    with pytest.raises(UnknownModel, match="'small': a/small, b/small; say which"):
        models.require("small")


def test_a_service_without_models_says_how_to_name_one() -> None:
    models = ServedModels(Settings())
    assert models.names == []
    with pytest.raises(UnknownModel, match="ACTOGRAPH_MODEL"):
        models.require("x")


def test_an_event_is_one_message_whatever_its_text_holds() -> None:
    event = Event(id=7, job_id="job_x", event="job.failed", created_at=1.5, data={"m": "a\nb\r\n\nid: 9"})
    lines = sse.encode(event).split("\n")
    assert lines[:2] == ["id: 7", "event: job.failed"]
    assert Event.model_validate_json(lines[2].removeprefix("data: ")) == event
    assert lines[3:] == ["", ""]
