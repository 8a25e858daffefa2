"""The OpenAPI document: FastAPI's, with request bodies, roles and examples.

`answer_examples.json` holds an answer for each schema, from a run on the demo's model with long lists cut.
"""

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import models_json_schema

from actograph.contract.resources import Problem
from api.problems.errors import documented
from api.routing import OPEN_PATHS, bodies

REF = "#/components/schemas/{model}"
TAGS = [
    {"name": "jobs", "description": "Evaluations and captures: submit, follow, cancel, read."},
    {"name": "chat", "description": "OpenAI's routes: conversations and texts, answered through the queue."},
    {"name": "batches", "description": "Files of chat and completion requests, in OpenAI's form."},
    {"name": "comparisons", "description": "Two conditions of a job on the same problems."},
    {"name": "sessions", "description": "Stored activations: search, slice, download, change, delete."},
    {"name": "store", "description": "The artifact store: clean up and verify."},
    {"name": "files", "description": "Uploaded datasets and batches."},
    {"name": "interventions", "description": "Stored vectors for interventions."},
    {"name": "models", "description": "Served models and their structure."},
    {"name": "queue", "description": "The queue and its workers."},
    {"name": "keys", "description": "API keys and their roles."},
    {"name": "health", "description": "Probes."},
]
#: examples of path parameters
PARAMETERS: Mapping[str, str] = {
    "job_id": "job_ec8c48724aa350cf6dd470ce3e9b233b",
    "load_id": "job_0d1ecb8b3b7f5bb2ad6ed3d3a7a0f5a3",
    "sample_id": "smp_5cb5cdb6ee4c0f4bd3b2a3a5e0e5f7b1",
    "session_id": "ses_8dd0b0a3c1c74dd3b4f6b65e06f0a6d2",
    "file_id": "file_6f1ed002ab5595859014ebf0951522d9",
    "vector_id": "vec_0f17c1b05243b6a08788fb444b6f4aa0",
    "batch_id": "batch_d9fbb3511650f1ab351323d7b4e72a24",
    "key_id": "key_0a62f59b8c5f142566aa73165f793c1a",
    "hook": "resid_post.12",
    "name": "manifest.json",
    "model": "Qwen/Qwen3-0.6B",
}
_PAGE = "ListPage_"


def install(app: FastAPI) -> None:
    """Replace `app.openapi` by this document, made once."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _document(app: FastAPI) -> dict[str, Any]:
    found = get_openapi(
        title=app.title, version=app.version, description=app.description, routes=app.routes, tags=TAGS
    )
    components = found.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for name, schema in _schemas().items():
        schemas.setdefault(name, schema)
    for unused in ("HTTPValidationError", "ValidationError"):
        schemas.pop(unused, None)
    components["securitySchemes"] = {
        "apiKey": {
            "type": "http",
            "scheme": "bearer",
            "description": "Required if the service has keys; without keys it serves only its own machine.",
        }
    }
    for path, operations in found["paths"].items():
        for operation in operations.values():
            responses = operation["responses"]
            if "422" in responses:
                responses["422"] = documented(422)[422]
            if path in OPEN_PATHS:
                for status in ("401", "403"):
                    responses.pop(status, None)
            else:
                operation["security"] = [{"apiKey": []}]
            _add_examples(operation)
            for parameter in operation.get("parameters", ()):
                if parameter["in"] == "path" and parameter["name"] in PARAMETERS:
                    parameter["example"] = PARAMETERS[parameter["name"]]
    return found


def _schemas() -> dict[str, Any]:
    """Schemas that FastAPI does not see: request bodies and problem details."""
    models: list[type[BaseModel]] = []
    found: dict[str, Any] = {}
    for body in bodies():
        if isinstance(body.model, TypeAdapter):
            found[body.schema] = body.model.json_schema(ref_template=REF)
            found |= found[body.schema].pop("$defs")
        else:
            models.append(body.model)
    inputs = [(model, "validation") for model in models]
    _, others = models_json_schema([(Problem, "serialization"), *inputs], ref_template=REF)  # type: ignore[list-item]
    found.update(others["$defs"])
    return found


@lru_cache(maxsize=1)
def _answers() -> Mapping[str, Any]:
    content = Path(__file__).with_name("answer_examples.json").read_text(encoding="utf-8")
    found: Mapping[str, Any] = json.loads(content)
    return found


def _answer_of(schema: str) -> Any:
    """The example of a schema; a list has one item. None if there is no example."""
    item = _answers().get(schema.removeprefix(_PAGE).removesuffix("_"))
    if item is None or not schema.startswith(_PAGE):
        return item
    ends = {"first_id": item.get("id"), "last_id": item.get("id")}
    return {"object": "list", "data": [item], **ends, "has_more": False}


def _add_examples(operation: dict[str, Any]) -> None:
    # FastAPI would drop null from them
    given = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
    for body in bodies():
        if given.get("schema", {}).get("$ref") == REF.format(model=body.schema):
            given["examples"] = {about: {"value": value} for about, value in body.examples.items()}
    for status, response in operation["responses"].items():
        content = response.get("content", {}).get("application/json")
        if status.startswith("2") and content is not None:
            name = content.get("schema", {}).get("$ref", "").rpartition("/")[2]
            if (example := _answer_of(name or operation["operationId"])) is not None:
                content["example"] = example
