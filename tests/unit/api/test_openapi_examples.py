"""The OpenAPI document is complete: every body and answer has examples, and every example fits."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter

from actograph.contract.batches import BatchRequest
from actograph.contract.chat.chat import ChatCompletionRequest, CompletionRequest
from actograph.contract.comparison import ActivationComparisonRequest
from actograph.contract.interventions import NewVector
from actograph.contract.models.model_loads import ModelLoadRequest
from actograph.contract.resources import Problem
from actograph.contract.scorers import RescoreRequest
from actograph.contract.service.keys import KeyUpdate, NewKey
from actograph.contract.specs import PauseRequest, SessionUpdate, job_spec_adapter
from api.app import create_app
from api.examples import EXAMPLES
from api.security.roles import OPEN_PATHS

MODELS: dict[str, type[BaseModel] | TypeAdapter[Any]] = {
    "JobSpec": job_spec_adapter,
    "BatchRequest": BatchRequest,
    "ChatCompletionRequest": ChatCompletionRequest,
    "CompletionRequest": CompletionRequest,
    "NewVector": NewVector,
    "RescoreRequest": RescoreRequest,
    "ActivationComparisonRequest": ActivationComparisonRequest,
    "SessionUpdate": SessionUpdate,
    "ModelLoadRequest": ModelLoadRequest,
    "NewKey": NewKey,
    "KeyUpdate": KeyUpdate,
    "PauseRequest": PauseRequest,
}


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


@pytest.mark.parametrize(
    ("schema", "about"), [(schema, about) for schema, examples in EXAMPLES.items() for about in examples]
)
def test_every_example_is_accepted(schema: str, about: str) -> None:
    model, value = MODELS[schema], EXAMPLES[schema][about]
    if isinstance(model, TypeAdapter):
        model.validate_python(value)
    else:
        model.model_validate(value)


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
            assert {"401", "403", "429"} <= operation["responses"].keys(), where
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
    assert without == [], "an example of each answer belongs into api/examples.py or api/answer_examples.json"


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
        for status, header in (("401", "WWW-Authenticate"), ("429", "Retry-After")):
            if where.partition(" ")[2] not in OPEN_PATHS:
                assert operation["responses"][status]["headers"][header]["required"], where
