"""From pydantic's errors to the fields of a body."""

import json
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI
from starlette.testclient import TestClient

from actograph.contract.job_specs import JobSpec
from api.bodies import JsonRoute
from api.errors import FieldError, install

router = APIRouter(route_class=JsonRoute)


@router.post("/")
def take(spec: JobSpec) -> None:
    """Take any job."""


app = FastAPI()
install(app)
app.include_router(router)
client = TestClient(app)


def errors(body: Any) -> dict[str, str]:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = client.post("/", content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422
    return {error["pointer"]: error["detail"] for error in answer.json()["errors"]}


CAPTURE = {"kind": "capture", "model": "m", "inputs": [{"prompt": "x"}]}
EVALUATION = {"kind": "evaluation", "model": "m", "dataset": {"path": "x"}}


def test_pointers_escape_what_json_pointers_must() -> None:
    error = FieldError(("metadata", "a/b~c", 3), "bad")
    assert error.pointer == "/metadata/a~1b~0c/3"
    assert error.param == "metadata.a/b~c.3"
    assert FieldError((), "bad").pointer == ""


def test_the_tag_of_the_union_is_no_part_of_the_path() -> None:
    # `capture` is the tag of this kind and a field at once
    assert set(errors(CAPTURE | {"capture": {"points": ["x"]}})) == {"/capture/points/0"}
    assert set(errors(EVALUATION | {"capture": {"mode": "x"}})) == {"/capture/mode"}


def test_the_members_of_a_union_are_reported_as_one_field() -> None:
    (detail,) = errors(CAPTURE | {"capture": {"layers": "first"}}).values()
    assert detail.count(" or ") == 2
    assert set(errors(CAPTURE | {"capture": {"layers": [0, -1]}})) >= {"/capture/layers/1"}


@pytest.mark.parametrize("field", ["dataset", "fewshot_dataset"])
def test_a_dataset_is_judged_by_the_field_that_it_names(field: str) -> None:
    assert set(errors(EVALUATION | {field: {"file_id": "x"}})) == {f"/{field}/file_id"}
    assert set(errors(EVALUATION | {field: {"hub": "a/b", "splitt": "x"}})) == {f"/{field}/splitt"}
    for several in ({}, {"path": "x", "hub": "y"}, {"url": "x"}):
        assert errors(EVALUATION | {field: several}) == {
            f"/{field}": "give exactly one of file_id, path, hub"
        }
    assert set(errors(EVALUATION | {field: "x"})) == {f"/{field}"}


def test_an_unknown_field_is_called_so() -> None:
    assert errors(CAPTURE | {"temprature": 1}) == {"/temprature": "unknown field"}


def test_the_first_of_very_many_errors_are_reported() -> None:
    assert len(errors(CAPTURE | {"inputs": [{}] * 5000})) == 20


@pytest.mark.parametrize("body", [b"{", b"[1", b"\xff\xfe", b'{"kind": "capture",}'])
def test_what_is_no_json_is_said_so(body: bytes) -> None:
    ((pointer, detail),) = errors(body).items()
    assert pointer == ""
    assert "Invalid JSON" in detail


def test_a_nul_is_found_wherever_it_hides() -> None:
    assert set(errors(CAPTURE | {"metadata": {"k": "a\0"}})) == {"/metadata/k"}
    assert set(errors(CAPTURE | {"metadata": {"\0": "a"}})) == {"/metadata"}
    assert set(errors(EVALUATION | {"conditions": [{"name": "a", "suffix": "\0"}]})) == {
        "/conditions/0/suffix"
    }
    # a backslash, then text: no NUL
    assert client.post("/", json=CAPTURE | {"tags": ["\\u0000"]}).status_code == 200


def test_not_a_number_is_refused() -> None:
    for value in ("NaN", "Infinity", "1e999"):
        body = json.dumps(CAPTURE)[:-1] + f', "sampling": {{"temperature": {value}}}}}'
        assert set(errors(body.encode())) <= {"", "/sampling/temperature"}


def test_the_kind_is_asked_for() -> None:
    for body in ({}, {"kind": "none"}):
        assert errors(body) == {"/kind": "kind must be one of evaluation, capture"}
