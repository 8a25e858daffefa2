"""The OpenAPI document is complete: every body and answer has examples, and every example fits."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter

from actograph.contract.resources import Problem
from api.app import create_app
from api.routing import OPEN_PATHS, Body, bodies


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return create_app().openapi()


def test_every_body_has_examples(document: dict[str, Any]) -> None:
    without = [
        f"{method} {path}"
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
        for content in [operation.get("requestBody", {}).get("content", {}).get("application/json")]
        if content is not None and not content.get("examples")
    ]
    assert without == []


@pytest.mark.parametrize(("body", "about"), [(body, about) for body in bodies() for about in body.examples])
def test_every_example_is_accepted(body: Body, about: str) -> None:
    value = body.examples[about]
    read = body.model if isinstance(body.model, TypeAdapter) else TypeAdapter(body.model)
    assert value.keys() <= read.dump_python(read.validate_python(value), by_alias=True).keys()


def operations(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield f"{method.upper()} {path}", operation


def models() -> dict[str, type[BaseModel]]:
    """Every model of the program by its name."""
    found, waiting = {}, [BaseModel]
    while waiting:
        for model in waiting.pop().__subclasses__():
            found[model.__name__] = model
            waiting.append(model)
    return found


def test_every_operation_says_what_it_is_and_how_it_fails(document: dict[str, Any]) -> None:
    names = []
    tags = {tag["name"] for tag in document["tags"]}
    for where, operation in operations(document):
        names.append(operation["operationId"])
        assert re.fullmatch(r"[a-z]+(_[a-z]+)*", operation["operationId"]), where
        assert operation["summary"], where
        assert operation["tags"], where
        assert set(operation["tags"]) <= tags, where
        assert {"500", "503"} <= operation["responses"].keys(), where
        if where.partition(" ")[2] not in OPEN_PATHS:
            assert operation["security"] == [{"apiKey": []}], where
            assert {"401", "403"} <= operation["responses"].keys(), where
    assert len(set(names)) == len(names)
    assert document["components"]["securitySchemes"]["apiKey"]["scheme"] == "bearer"


def test_every_answer_has_an_example_of_its_form(document: dict[str, Any]) -> None:
    known, without = models(), []
    for where, operation in operations(document):
        for status, response in operation["responses"].items():
            for media_type, content in response.get("content", {}).items():
                example, schema = content.get("example"), content.get("schema", {})
                if schema.get("format") == "binary":
                    continue
                if example is None:
                    without.append(f"{where} {status} {media_type}")
                    continue
                name = schema.get("$ref", "").rpartition("/")[2]
                if status.startswith("2") and media_type == "application/json" and name:
                    is_page = name.startswith("ListPage_")
                    model = known[name.removeprefix("ListPage_").removesuffix("_") if is_page else name]
                    for value in example["data"] if is_page else [example]:
                        read = model.model_validate(value)
                        assert value.keys() <= read.model_dump().keys(), (where, name)
                elif media_type == "application/problem+json":
                    problem = Problem.model_validate(example)
                    assert problem.status == int(status)
    assert without == [], "put an example of each answer beside its route or into api/answer_examples.json"


def test_every_parameter_of_a_path_has_an_example(document: dict[str, Any]) -> None:
    without = [
        f"{where} {parameter['name']}"
        for where, operation in operations(document)
        for parameter in operation.get("parameters", ())
        if parameter["in"] == "path" and "example" not in parameter
    ]
    assert without == []


def test_what_every_refusal_carries_is_documented(document: dict[str, Any]) -> None:
    for where, operation in operations(document):
        if where.partition(" ")[2] not in OPEN_PATHS:
            assert operation["responses"]["401"]["headers"]["WWW-Authenticate"]["required"], where
