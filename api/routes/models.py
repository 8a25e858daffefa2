"""/v1/models in OpenAI's shape, what a loaded model looks like, and changing it."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query
from sqlalchemy.orm import Session

from actograph.contract.errors import NotFound, UnknownModel
from actograph.contract.models.model_loads import ModelLoadRequest, resolve_savepoints
from actograph.contract.resources import ListPage, Model, ModelLoad, ModelStructure
from api.dependencies import Services, ServicesDep, known_id
from api.problems.errors import documented
from api.problems.validation import parse_body
from api.requests.request_body import body_of, json_body
from storage.queue import model_loads, workers

router = APIRouter(tags=["models"])


@router.get("/v1/models", operation_id="list_models", summary="Served models", response_model=ListPage[Model])
def list_models(services: ServicesDep) -> ListPage[Model]:
    """`loaded` where a live worker holds the model, else `available`."""
    with services.database.read() as session:
        data = [_model(services, session, name) for name in services.models.names]
    return ListPage[Model](
        data=data, first_id=data[0].id if data else None, last_id=data[-1].id if data else None
    )


@router.post(
    "/v1/models/load",
    status_code=202,
    operation_id="load_model",
    summary="Load a model in place of the one that a worker holds",
    response_model=ModelLoad,
    responses=documented(413, 415, 422),
    openapi_extra=body_of("ModelLoadRequest"),
)
@router.post("/models/load", status_code=202, response_model=ModelLoad, include_in_schema=False)
def load_model(services: ServicesDep, body: Annotated[bytes, Depends(json_body)]) -> ModelLoad:
    """A worker unloads its model before its next unit, loads this one and proves it.

    `GET /v1/models/load/{id}` tells how far it is. Where the model is refused, the reason is its
    `error`, and the worker goes on with the model that it had.
    """
    request = parse_body(ModelLoadRequest, body)
    model = services.models.find(request.model_id)
    if model is None:
        served = ", ".join(services.models.names) or "none (set ACTOGRAPH_MODEL)"
        raise UnknownModel(
            f"model {request.model_id[:200]!r} is not served here; served: {served}", param="model_id"
        )
    with services.database.read() as session:
        structure = services.structures.find(session, model)
    if structure is not None:
        resolve_savepoints(request.options, structure)
    with services.database.write() as session:
        row = model_loads.create(session, model, request.options)
        answer = model_loads.resource(session, row)
    services.broker.wake(row.id, row.priority)
    return answer


@router.get(
    "/v1/models/load/{load_id}",
    operation_id="get_model_load",
    summary="What became of a request to load a model",
    response_model=ModelLoad,
    responses=documented(404, 422),
)
def get_model_load(services: ServicesDep, load_id: str) -> ModelLoad:
    known_id(load_id, "job", "model load")
    with services.database.read() as session:
        return model_loads.resource(session, model_loads.get(session, load_id))


@router.get(
    "/v1/models/{model:path}",
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
    "/v1/model/structure",
    operation_id="get_model_structure",
    summary="Layers, widths and hook points of a model",
    response_model=ModelStructure,
    responses=documented(404, 422),
)
def get_model_structure(
    services: ServicesDep,
    model: Annotated[
        str | None,
        Query(
            max_length=1024,
            description="Default: the model loaded last; the service's if no worker holds one.",
        ),
    ] = None,
) -> ModelStructure:
    """As the last worker that loaded the model by request or settings found and verified it."""
    with services.database.read() as session:
        if model is not None:
            name: str | None = _served(services, model)
        else:
            name = workers.model_loaded_last(session) or services.models.default
        if name is None:
            raise NotFound("no model is served; set ACTOGRAPH_MODEL")
        found = services.structures.find(session, name)
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
