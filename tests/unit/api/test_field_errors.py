"""From pydantic's errors to the fields of a body."""

import json
from typing import Any

import pytest
from fastapi import Depends, FastAPI
from starlette.testclient import TestClient

from actograph.contract.job_specs import JobSpec
from api.errors import install
from api.middleware.bodies import refuse_nul

app = FastAPI(dependencies=[Depends(refuse_nul)])
install(app)
client = TestClient(app, raise_server_exceptions=False)


@app.post("/")
def take(spec: JobSpec) -> None:
    """Take any job."""


def errors(body: Any) -> dict[str, str]:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = client.post("/", content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    return {error["pointer"]: error["detail"] for error in answer.json()["errors"]}


CAPTURE = {"kind": "capture", "model": "m", "inputs": [{"prompt": "x"}]}
EVALUATION = {"kind": "evaluation", "model": "m", "dataset": {"path": "x"}}


def test_the_tag_of_the_union_is_no_part_of_the_path() -> None:
    # `capture` is the tag of this kind and a field at once
    assert set(errors(CAPTURE | {"capture": {"points": ["x"]}})) == {"/capture/points/0"}
    assert set(errors(EVALUATION | {"capture": {"mode": "x"}})) == {"/capture/mode"}


def test_an_unknown_field_is_called_so() -> None:
    assert errors(CAPTURE | {"temprature": 1}) == {"/temprature": "unknown field"}


@pytest.mark.parametrize("body", [b"{", b"[1", b"\xff\xfe", b'{"kind": "capture",}'])
def test_what_is_no_json_is_said_so(body: bytes) -> None:
    ((pointer, detail),) = errors(body).items()
    assert pointer == ""
    assert "Invalid JSON" in detail


@pytest.mark.parametrize(
    "changes", [{"metadata": {"k": "a\0"}}, {"metadata": {"\0": "a"}}, {"tags": ["\\\0"]}]
)
def test_a_nul_is_refused_wherever_it_hides(changes: dict[str, Any]) -> None:
    answer = client.post("/", json=CAPTURE | changes)
    assert answer.status_code == 422 and "NUL" in answer.json()["detail"]


def test_an_escaped_backslash_before_zeros_is_no_nul() -> None:
    assert client.post("/", json=CAPTURE | {"tags": ["\\u0000"]}).status_code == 200


def test_not_a_number_is_refused() -> None:
    for value in ("NaN", "Infinity", "1e999"):
        body = json.dumps(CAPTURE)[:-1] + f', "sampling": {{"temperature": {value}}}}}'
        assert set(errors(body.encode())) <= {"", "/sampling/temperature"}
