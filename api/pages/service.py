"""Pages of models, vectors, storage and keys."""

from typing import Annotated

from fastapi import APIRouter, Form, Query, Request
from starlette.responses import Response

from actograph.contract.errors import NotFound
from actograph.contract.job_specs import validated
from actograph.contract.model_loads import ModelLoadRequest
from actograph.contract.operations import NewKey
from actograph.contract.roles import Role
from api.auth import ADMIN, READ, SUBMIT
from api.dependencies import KeyId, Services, ServicesDep, VectorId
from api.pages.rendering import render, see_other
from api.routes.keys import create_key, list_keys, revoke_key
from api.routes.models import begin_load, get_model_structure, list_models
from api.routes.sessions import get_store_usage
from api.routes.vectors import delete_vector, list_vectors
from storage.index.pages import PageOptions

router = APIRouter(include_in_schema=False, dependencies=[READ])

#: keys or vectors of a page
PAGE = 100


@router.get("/models")
def show_models(
    request: Request, services: ServicesDep, model: Annotated[str, Query(max_length=1024)] = ""
) -> Response:
    structure, trouble = None, ""
    try:
        structure = get_model_structure(services, model or None)
    except NotFound as error:
        trouble = error.message
    values = {"models": list_models(services).data, "structure": structure, "trouble": trouble}
    return render(request, "models.html", values)


@router.post("/models", dependencies=[ADMIN])
def load(services: ServicesDep, model: Annotated[str, Form(max_length=1024)]) -> Response:
    """Load a model; its job shows the progress."""
    begun = begin_load(services, validated(ModelLoadRequest, {"model_id": model}))
    return see_other(f"/jobs/{begun.id}")


@router.get("/vectors")
def show_vectors(
    request: Request,
    services: ServicesDep,
    name: Annotated[str, Query(max_length=64)] = "",
    after: str = "",
) -> Response:
    page = list_vectors(services, PageOptions(limit=PAGE, after=after or None), name=name or None)
    return render(request, "vectors.html", {"page": page, "name": name})


@router.post("/vectors/{vector_id}", dependencies=[SUBMIT])
def remove_vector(services: ServicesDep, vector_id: VectorId) -> Response:
    delete_vector(services, vector_id)
    return see_other("/vectors")


@router.get("/storage")
def show_storage(request: Request, services: ServicesDep) -> Response:
    return render(request, "storage.html", {"usage": get_store_usage(services)})


@router.get("/keys", dependencies=[ADMIN])
def show_keys(request: Request, services: ServicesDep, after: str = "") -> Response:
    return _keys(request, services, after=after)


@router.post("/keys", dependencies=[ADMIN])
def make_key(
    request: Request,
    services: ServicesDep,
    name: Annotated[str, Form()],
    role: Annotated[Role, Form()],
    owner: Annotated[str, Form()] = "",
) -> Response:
    """Create a key, and show it in the answer: no address leads to it again."""
    new = validated(NewKey, {"name": name, "role": role, "owner": owner.strip() or None})
    made = create_key(services, new)
    return _keys(request, services, made=made.key)


@router.post("/keys/{key_id}", dependencies=[ADMIN])
def revoke(services: ServicesDep, key_id: KeyId) -> Response:
    revoke_key(services, key_id)
    return see_other("/keys")


def _keys(request: Request, services: Services, *, after: str = "", made: str = "") -> Response:
    page = list_keys(services, PageOptions(limit=PAGE, after=after or None))
    return render(request, "keys.html", {"page": page, "made": made, "roles": list(Role)})
