"""/v1/models in OpenAI's shape, and what a loaded model looks like."""

from typing import Annotated

from fastapi import APIRouter, Query
from sqlalchemy.orm import Session

from actograph.contract.errors import NotFound
from actograph.contract.resources import ListPage, Model, ModelStructure
from api.dependencies import Services, ServicesDep
from api.errors import documented
from storage import workers

router = APIRouter(prefix="/v1", tags=["models"])


@router.get("/models", operation_id="list_models", summary="Served models", response_model=ListPage[Model])
def list_models(services: ServicesDep) -> ListPage[Model]:
    """`loaded` where a live worker holds the model, else `available`."""
    with services.database.read() as session:
        data = [_model(services, session, name) for name in services.models.names]
    return ListPage[Model](
        data=data, first_id=data[0].id if data else None, last_id=data[-1].id if data else None
    )


@router.get(
    "/models/{model:path}",
    operation_id="get_model",
    summary="One served model",
    response_model=Model,
    responses=documented(404, 422),
)
def get_model(services: ServicesDep, model: str) -> Model:
    """By its name or any alias; the names of hub models contain slashes."""
    with services.database.read() as session:
        return _model(services, session, _served(services, model))


@router.get(
    "/model/structure",
    operation_id="get_model_structure",
    summary="Layers, widths and hook points of a model",
    response_model=ModelStructure,
    responses=documented(404, 422),
)
def get_model_structure(
    services: ServicesDep,
    model: Annotated[str | None, Query(max_length=1024, description="Default: the service's model.")] = None,
) -> ModelStructure:
    """As the last worker that loaded the model found and proved it."""
    name = services.models.default if model is None else _served(services, model)
    if name is None:
        raise NotFound("no model is served; set ACTOGRAPH_MODEL")
    with services.database.read() as session:
        found = workers.structure(session, name)
    if found is None:
        raise NotFound(f"no worker has loaded {name} yet; /v1/workers shows how far they are")
    return found


def _served(services: Services, name: str) -> str:
    found = services.models.find(name)
    if found is None:
        raise NotFound(f"model {name[:200]!r} is not served; /v1/models lists those that are", param="model")
    return found


def _model(services: Services, session: Session, name: str) -> Model:
    loaded_at = workers.loaded_at(session, name)
    return Model(
        id=name,
        created=int(loaded_at if loaded_at is not None else services.started_at),
        status="loaded" if name in workers.loaded_models(session) else "available",
    )
