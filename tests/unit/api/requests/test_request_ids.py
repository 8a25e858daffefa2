"""Every answer has an id; a client may choose it."""

import re

import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from api.requests.request_ids import RequestIds


@pytest.fixture
def client() -> TestClient:
    app = Starlette(routes=[Route("/", lambda request: PlainTextResponse("ok"))])
    return TestClient(RequestIds(app))


def test_an_answer_has_an_id(client: TestClient) -> None:
    ids = {client.get(path).headers["x-request-id"] for path in ("/", "/?again", "/none")}
    assert len(ids) == 3
    assert all(re.fullmatch(r"req_[0-9a-f]{32}", one) for one in ids)


def test_the_id_of_the_client_comes_back(client: TestClient) -> None:
    assert client.get("/", headers={"x-request-id": "mine-1"}).headers["x-request-id"] == "mine-1"


@pytest.mark.parametrize("wrong", ["", "a b", "x" * 129, "a;b"])
def test_an_id_that_is_none_is_replaced(client: TestClient, wrong: str) -> None:
    assert client.get("/", headers={"x-request-id": wrong}).headers["x-request-id"].startswith("req_")
