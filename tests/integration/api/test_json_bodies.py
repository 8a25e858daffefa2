"""What is no JSON is refused in the one form that every error has, whatever the route."""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.integration.api.conftest import Problem, Service

pytestmark = pytest.mark.integration

POSTS = ["/v1/jobs", "/v1/estimate", "/v1/vectors", "/v1/models/load", "/v1/queue/pause"]
JSON = {"content-type": "application/json"}


def test_a_body_that_cannot_be_read_is_unprocessable(
    service: "Service", problem: "Problem", subtests: pytest.Subtests
) -> None:
    for path in POSTS:
        for body in [b"\xe9u\x00F", b"{", b"[]", b'"text"', b"[" * 10_000, b"9" * 10_000, b'{"a":NaN}']:
            with subtests.test(body=body, path=path):
                problem(service.client.post(path, content=body, headers=JSON), 422)


@pytest.mark.parametrize("path", POSTS)
def test_another_content_type_is_refused(service: "Service", problem: "Problem", path: str) -> None:
    answer = service.client.post(path, content=b"{}", headers={"content-type": "text/plain"})
    problem(answer, 415, says="application/json")


def test_pausing_needs_no_body(service: "Service") -> None:
    assert service.client.post("/v1/queue/pause").json()["paused"]
    answer = service.client.post("/v1/queue/pause", json={"reason": "noon"})
    assert answer.json()["pauses"][0]["reason"] == "noon"
