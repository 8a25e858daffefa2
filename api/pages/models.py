"""Models: what is served, and the structure of one of them with what was verified."""

from typing import Annotated

from fastapi import APIRouter, Form, Query, Request
from starlette.responses import Response

from actograph.contract.errors import NotFound
from actograph.contract.model_loads import ModelLoadRequest
from api.auth import ADMIN, READ
from api.dependencies import ServicesDep
from api.pages.rendering import render, see_other
from api.routes.models import begin_load, get_model_structure, list_models

router = APIRouter(include_in_schema=False, dependencies=[READ])


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
    begun = begin_load(services, ModelLoadRequest(model_id=model))
    return see_other(f"/jobs/{begun.id}")
