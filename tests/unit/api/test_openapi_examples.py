"""Every JSON body of the OpenAPI document has examples, and every example is accepted."""

from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter

from actograph.contract.batches import BatchRequest
from actograph.contract.chat import ChatCompletionRequest, CompletionRequest
from actograph.contract.comparison import ActivationComparisonRequest
from actograph.contract.interventions import NewVector
from actograph.contract.keys import KeyUpdate, NewKey
from actograph.contract.model_loads import ModelLoadRequest
from actograph.contract.queue_control import PauseRequest
from actograph.contract.scorers import RescoreRequest
from actograph.contract.specs import SessionUpdate, job_spec_adapter
from api.app import create_app
from api.examples import EXAMPLES

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


def test_every_operation_says_what_it_is_and_how_it_fails(document: dict[str, Any]) -> None:
    ids = []
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            ids.append(operation["operationId"])
            assert operation["summary"], (method, path)
            assert {"401", "500", "503"} <= operation["responses"].keys(), (method, path)
    assert len(set(ids)) == len(ids)
