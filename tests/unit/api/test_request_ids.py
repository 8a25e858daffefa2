"""Every request has an id: in its answer, in its log lines, and in an error that nobody expected."""

import logging
import re

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from api.errors import install
from api.request_ids import RequestIds, name_in_logs

app = FastAPI()
install(app)
app.add_middleware(RequestIds)
client = TestClient(app, raise_server_exceptions=False)
log = logging.getLogger(__name__)


@app.get("/fails")
def fail() -> None:
    """Fail in a thread of its own."""
    log.warning("about to fail: %s", "50 %")
    raise RuntimeError("unforeseen")


def test_an_answer_has_an_id_of_its_own_or_its_client_s() -> None:
    assert client.get("/fails", headers={"x-request-id": "night:1.a_b-c"}).headers["x-request-id"] == (
        "night:1.a_b-c"
    )
    for unsafe in ("", "a b", "x" * 129, "a[b]", "a;b"):
        ids = {
            client.get(path, headers={"x-request-id": unsafe}).headers["x-request-id"]
            for path in ("/none", "/fails", "/openapi.json")
        }
        assert len(ids) == 3 and all(re.fullmatch(r"req_[0-9a-f]{32}", one) for one in ids)


def test_log_and_error_name_the_id(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = logging.StreamHandler()
    monkeypatch.setattr(logging.getLogger(), "handlers", [handler])
    name_in_logs()
    answer = client.get("/fails", headers={"x-request-id": "mine"})
    assert answer.json()["detail"].endswith("[mine]") and answer.json()["error"]["message"].endswith("[mine]")
    first, second, *_ = capsys.readouterr().err.splitlines()
    assert (first, second) == ("about to fail: 50 % [mine]", "GET /fails failed: unforeseen [mine]")
