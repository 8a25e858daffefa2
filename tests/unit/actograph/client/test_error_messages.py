"""What is told where a service cannot be reached: one line that says what is wrong and where."""

import pytest

from actograph.client import ApiError, Client
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
