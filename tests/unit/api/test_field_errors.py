"""From pydantic's errors to the fields of a body."""

import json
from typing import Any

import pytest
from fastapi import Depends, FastAPI
from starlette.testclient import TestClient

from actograph.contract.field_wording import FORMS
from actograph.contract.job_specs import JobSpec
from actograph.settings import Settings
from api.app import create_app
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
    assert errors(CAPTURE | {"colour": 1}) == {"/colour": "unknown field"}


def test_an_unknown_name_is_answered_with_the_nearest_one_everywhere(subtests: pytest.Subtests) -> None:
    hook = {"hook": "embed", "op": "zero"}
    probe = {"kind": "probe", "sessions": {"jobs": ["job_1"]}}
    cases: list[tuple[dict[str, Any], str, str]] = [
        (CAPTURE | {"kind": "captur"}, "/kind", "capture"),
        (CAPTURE | {"temprature": 1, "tag": []}, "/tag", "tags"),
        (CAPTURE | {"sampling": {"max_token": 3}}, "/sampling/max_token", "max_tokens"),
        (CAPTURE | {"capture": {"points": ["resid_pst"]}}, "/capture/points/0", "resid_post"),
        (CAPTURE | {"capture": {"pionts": []}}, "/capture/pionts", "points"),
        (CAPTURE | {"capture": {"layers": "al"}}, "/capture/layers", "all"),
        (CAPTURE | {"capture": {"reduce": "men"}}, "/capture/reduce", "mean"),
        (CAPTURE | {"capture": {"dtype": "float23"}}, "/capture/dtype", "float32"),
        (CAPTURE | {"capture": {"mode": "prefil"}}, "/capture/mode", "prefill"),
        (CAPTURE | {"capture": {"positions": "generatd"}}, "/capture/positions", "generated"),
        (CAPTURE | {"capture": {"positions": ["promt"]}}, "/capture/positions/0", "prompt"),
        (CAPTURE | {"capture": {"positions": {"strid": 3}}}, "/capture/positions/strid", "stride"),
        (CAPTURE | {"capture": {"features": {"frist": 3}}}, "/capture/features/frist", "first"),
        (CAPTURE | {"inputs": [{"promt": "a"}]}, "/inputs/0/promt", "prompt"),
        (CAPTURE | {"conditions": [{"name": "a", "sufix": ""}]}, "/conditions/0/sufix", "suffix"),
        (CAPTURE | {"interventions": [hook | {"op": "ad"}]}, "/interventions/0/op", "add"),
        (CAPTURE | {"interventions": [hook | {"hok": "x"}]}, "/interventions/0/hok", "hook"),
        (CAPTURE | {"engine": "tracd"}, "/engine", "traced"),
        (CAPTURE | {"expires_after": "nevr"}, "/expires_after", "never"),
        (EVALUATION | {"task": "gsm9k"}, "/task", "gsm8k"),
        (EVALUATION | {"task": "gsm8k", "tool_format": "tmplate"}, "/tool_format", "template"),
        (probe | {"method": "logistc"}, "/method", "logistic"),
        (probe | {"sessions": {"job": ["job_1"]}}, "/sessions/job", "jobs"),
    ]
    for body, pointer, nearest in cases:
        with subtests.test(pointer=pointer, nearest=nearest):
            detail = errors(body)[pointer]
            assert f"Did you mean {nearest!r}?" in detail
            assert len(detail) < 150


def test_a_value_of_another_form_is_answered_with_the_form(subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[str, Any], str, str]] = [
        (
            CAPTURE | {"conditions": [{"name": "a b"}]},
            "/conditions/0/name",
            "'a b' is not valid. Write",
        ),
        (CAPTURE | {"inputs": None, "dataset": {"file_id": "f"}}, "/dataset/file_id", "such as file_3fa2"),
        (CAPTURE | {"capture": {"dtype": "fp32"}}, "/capture/dtype", "Write one of model, float32"),
        (CAPTURE | {"capture": {"layers": "x:y"}}, "/capture/layers", "a slice of layers, such as 8:20:4"),
        (CAPTURE | {"metadata": {"a": 1}}, "/metadata/a", "1 is not valid. Write a text"),
        (CAPTURE | {"tags": [""]}, "/tags/0", "the text is empty"),
    ]
    for body, pointer, says in cases:
        with subtests.test(pointer=pointer):
            assert says in errors(body)[pointer]


def test_every_pattern_of_a_request_has_its_form_in_words() -> None:
    def patterns(node: Any) -> set[str]:
        nodes = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
        own = {node["pattern"]} if isinstance(node, dict) and isinstance(node.get("pattern"), str) else set()
        return own.union(*map(patterns, nodes))

    # positions are read from texts before, with errors of their own
    found = {one for one in patterns(create_app(Settings()).openapi()) if "prompt|generated" not in one}
    assert {one for one in found if one not in FORMS} == set()


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
