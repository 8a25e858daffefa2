"""The OpenAPI document: what FastAPI finds, and what it cannot see."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from actograph.contract.batches import BatchRequest
from actograph.contract.chat.chat import ChatCompletionRequest, CompletionRequest
from actograph.contract.comparison import ActivationComparisonRequest
from actograph.contract.interventions import NewVector
from actograph.contract.models.model_loads import ModelLoadRequest
from actograph.contract.resources import Problem
from actograph.contract.scorers import RescoreRequest
from actograph.contract.service.key_roles import Role
from actograph.contract.service.keys import KeyUpdate, NewKey
from actograph.contract.specs import PauseRequest, SessionUpdate, job_spec_adapter
from api.examples import add_examples
from api.security.roles import OPEN_PATHS, ROLES

REF = "#/components/schemas/{model}"
TAGS = [
    {"name": "jobs", "description": "Evaluations and captures: submit, follow, cancel, read."},
    {"name": "chat", "description": "OpenAI's routes: conversations and texts, answered through the queue."},
    {"name": "batches", "description": "Files of chat and completion requests, in OpenAI's form."},
    {"name": "comparisons", "description": "Two conditions of a job on the same problems."},
    {"name": "sessions", "description": "What was captured: search, slice, download, change, delete."},
    {"name": "store", "description": "The artifact store as a whole: usage, clearing, checking."},
    {"name": "files", "description": "Datasets that clients upload."},
    {"name": "interventions", "description": "Vectors that jobs add, project out or put in place."},
    {"name": "models", "description": "Served models and their structure."},
    {"name": "queue", "description": "The queue and its workers."},
    {"name": "keys", "description": "API keys: who may do what."},
    {"name": "health", "description": "Probes."},
]


def install(app: FastAPI) -> None:
    """Have `app.openapi()` add job specs, problem details and the bearer key."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _document(app: FastAPI) -> dict[str, Any]:
    found = get_openapi(
        title=app.title,
        version=app.version,
        description=app.description,
        routes=app.routes,
        tags=TAGS,
    )
    spec = job_spec_adapter.json_schema(ref_template=REF)
    _, others = models_json_schema(
        [
            (Problem, "serialization"),
            (NewVector, "validation"),
            (BatchRequest, "validation"),
            (ChatCompletionRequest, "validation"),
            (CompletionRequest, "validation"),
            (NewKey, "validation"),
            (KeyUpdate, "validation"),
            (RescoreRequest, "validation"),
            (ActivationComparisonRequest, "validation"),
            (SessionUpdate, "validation"),
            (ModelLoadRequest, "validation"),
            (PauseRequest, "validation"),
        ],
        ref_template=REF,
    )
    components = found.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for name, schema in {**spec.pop("$defs"), **others["$defs"], "JobSpec": spec}.items():
        schemas.setdefault(name, schema)
    components["securitySchemes"] = {
        "apiKey": {
            "type": "http",
            "scheme": "bearer",
            "description": "Needed where the service has keys; without keys it serves its own machine alone.",
        }
    }
    for path, operations in found["paths"].items():
        for method, operation in operations.items():
            if path in OPEN_PATHS:
                # nobody is refused for want of a key
                for status in ("401", "403", "429"):
                    operation["responses"].pop(status, None)
            else:
                operation["security"] = [{"apiKey": []}]
                operation["x-role"] = ROLES.get((method.upper(), path), Role.ADMIN)
    add_examples(found)
    return found
