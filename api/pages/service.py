"""Pages of the service: models, workers, storage and keys."""

import json
from typing import Annotated, Any

from fastapi import Form, Query, Request
from starlette.responses import HTMLResponse, Response

from actograph.contract.errors import NotFound
from actograph.contract.models.model_loads import ModelLoadRequest
from actograph.contract.service.key_roles import Role
from api.dependencies import After, KeyId, RingDep, ServicesDep
from api.pages.rendering import render, see_other
from api.problems.validation import parse_body
from api.routes.models import create_load, get_model_structure, list_models
from api.routes.service.keys import create_key, list_keys, revoke_key
from api.routes.service.queue import get_queue, list_workers, pause_queue, resume_queue
from api.routes.service.store import collect_garbage, verify_store
from api.routes.sessions import get_store_usage
from api.routing import ADMIN, READ, Routes
from api.security.auth import Caller
from storage.index.pages import PageOptions

router = Routes(include_in_schema=False)

PAGE = 100


@router.add("GET", "/models", READ, "Models", response_class=HTMLResponse)
def show_models(
    request: Request, services: ServicesDep, model: Annotated[str, Query(max_length=1024)] = ""
) -> Response:
    values: dict[str, Any] = {"models": list_models(services).data, "structure": None, "trouble": ""}
    try:
        values["structure"] = get_model_structure(services, model or None)
    except NotFound as error:
        values["trouble"] = error.message
    return render(request, "models.html", values)


@router.add("POST", "/models", ADMIN, "Load a model", takes_form=True)
def load(services: ServicesDep, model: Annotated[str, Form(max_length=1024)]) -> Response:
    create_load(services, parse_body(ModelLoadRequest, json.dumps({"model_id": model}).encode()))
    return see_other("/workers")


@router.add("GET", "/workers", ADMIN, "Workers", response_class=HTMLResponse)
def show_workers(request: Request, services: ServicesDep) -> Response:
    values = {"workers": list_workers(services).data, "queue": get_queue(services)}
    return render(request, "workers.html", values)


@router.add("POST", "/queue/pause", ADMIN, "Pause the queue", takes_form=True)
def pause(services: ServicesDep, by: Caller, reason: Annotated[str, Form(max_length=500)] = "") -> Response:
    pause_queue(services, by, json.dumps({"reason": reason}).encode() if reason else None)
    return see_other("/workers")


@router.add("POST", "/queue/resume", ADMIN, "Resume the queue")
def resume(services: ServicesDep, by: Caller) -> Response:
    resume_queue(services, by)
    return see_other("/workers")


@router.add("GET", "/storage", READ, "Storage", response_class=HTMLResponse)
def show_storage(request: Request, services: ServicesDep) -> Response:
    return _storage(request, services)


@router.add("POST", "/storage/verify", ADMIN, "Verify stored files", lane="reads")
def verify(request: Request, services: ServicesDep) -> Response:
    """Verify as many files as fit into ten seconds."""
    return _storage(request, services, verification=verify_store(services, sample=1.0, seed=0, seconds=10.0))


@router.add("POST", "/storage/gc", ADMIN, "Remove expired data", takes_form=True)
def collect(request: Request, services: ServicesDep, dry_run: Annotated[bool, Form()] = False) -> Response:
    return _storage(request, services, gc=collect_garbage(services, dry_run=dry_run, seconds=10.0))


@router.add("GET", "/keys", ADMIN, "Keys", response_class=HTMLResponse)
def show_keys(request: Request, services: ServicesDep, after: After = None) -> Response:
    return _keys(request, services, after)


@router.add("POST", "/keys", ADMIN, "Create a key", takes_form=True)
def create(
    request: Request,
    services: ServicesDep,
    ring: RingDep,
    *,
    name: Annotated[str, Form()],
    role: Annotated[str, Form()] = "submit",
    owner: Annotated[str, Form()] = "",
) -> Response:
    """Create a key and show it once."""
    body = {"name": name, "role": role, "owner": owner or None}
    made = create_key(services, ring, json.dumps(body).encode())
    return _keys(request, services, made=made)


@router.add("POST", "/keys/{key_id}/revoke", ADMIN, "Revoke a key")
def revoke(services: ServicesDep, ring: RingDep, key_id: KeyId) -> Response:
    revoke_key(services, ring, key_id)
    return see_other("/keys")


def _storage(
    request: Request, services: ServicesDep, *, verification: Any = None, gc: Any = None
) -> Response:
    values = {"usage": get_store_usage(services), "verification": verification, "gc": gc}
    return render(request, "storage.html", values)


def _keys(request: Request, services: ServicesDep, after: str | None = None, *, made: Any = None) -> Response:
    found = list_keys(services, PageOptions(limit=PAGE, order="desc", after=after or None))
    values = {
        "keys": found.data,
        "has_more": found.has_more,
        "last_id": found.last_id,
        "made": made,
        "roles": list(Role),
    }
    return render(request, "keys.html", values)
