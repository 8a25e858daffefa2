"""What is told where a service cannot be reached: one line that says what is wrong and where."""

import httpx
import pytest

from actograph.client import ApiError, Client
from actograph.client.errors import from_response
from actograph.contract.base import ProblemItem
from actograph.contract.errors import InvalidRequest


def test_what_is_no_url_of_a_service(subtests: pytest.Subtests) -> None:
    for url in [
        "",
        "lab.example",
        "127.0.0.1:8420",
        "ftp://lab.example",
        "http://",
        "http://[::1",
        "http://a:b:c",
    ]:
        with subtests.test(url=url), pytest.raises(InvalidRequest, match="is not the URL"):
            Client(url, "")


def test_a_field_is_named_once() -> None:
    def error(*items: ProblemItem) -> str:
        return str(ApiError("layer 9: there are 2", status=422, code="invalid_request", errors=items))

    same = ProblemItem(detail="layer 9: there are 2", pointer="/capture/layers")
    assert error(same) == "layer 9: there are 2"
    assert error(same, ProblemItem(detail="no such task", pointer="/task")) == (
        "layer 9: there are 2 (/task: no such task)"
    )


def test_the_wait_that_a_service_asks_for_is_known() -> None:
    request = httpx.Request("GET", "http://lab.example/x")
    for text, seconds in {"7": 7.0, "Wed, 21 Oct 2026 07:28:00 GMT": 0.0}.items():
        answer = httpx.Response(503, headers={"Retry-After": text}, request=request)
        assert from_response(answer).retry_after == seconds
