"""/v1/models in OpenAI's form, the structure of a model, and model loads."""

from typing import Annotated, Any

import anyio
from anyio import to_thread
from fastapi import APIRouter, Query, Request, Response
from sqlalchemy.orm import Session

from actograph.contract.base import ListPage
from actograph.contract.errors import ModelRefused, NotFound
from actograph.contract.model_loads import ModelLoadRequest, resolve_savepoints
from actograph.contract.models import Model, ModelStructure
from actograph.contract.resources import ModelLoad
from api.auth import ADMIN, READ
from api.dependencies import LoadId, Services, ServicesDep
from storage.queue import model_loads, workers

#: between two looks at a load that a client waits for
_LOOK_SECONDS = 0.25
#: of both paths
_LOAD: Any = {
    "dependencies": [ADMIN],
    "status_code": 202,
    "responses": {200: {"model": ModelLoad, "description": "The load has ended."}},
}

router = APIRouter(tags=["models"], dependencies=[READ])


@router.get("/v1/models", summary="Served models")
def list_models(services: ServicesDep) -> ListPage[Model]:
    """Status `loaded` if a live worker holds the model, else `available`."""
    with services.database.read() as session:
        data = [_model(services, session, name) for name in services.models.names]
    return ListPage[Model](
        data=data, first_id=data[0].id if data else None, last_id=data[-1].id if data else None
    )


@router.post("/v1/models/load", summary="Load a model on a worker", **_LOAD)
@router.post("/models/load", summary="Alias of POST /v1/models/load", name="load_model_alias", **_LOAD)
async def load_model(
    services: ServicesDep, request: ModelLoadRequest, http: Request, response: Response
) -> ModelLoad:
    """A worker unloads its model once all running samples have ended, then loads and verifies this one.

    `GET /v1/models/load/{id}` shows the progress. If the model is refused, `error` has the reason and the
    worker keeps its former model. With `wait` the answer comes once the model is loaded (200), and a refusal
    is an error. A client that stops waiting cancels nothing.
    """
    load = await to_thread.run_sync(begin_load, services, request)
    while request.wait and not load.status.is_terminal() and not services.stopping.is_set():
        if await http.is_disconnected():
            break
        await anyio.sleep(_LOOK_SECONDS)
        load = await to_thread.run_sync(_load, services, load.id)
    if request.wait and load.error is not None:
        raise ModelRefused(load.error.message)
    if load.status.is_terminal():
        response.status_code = 200
    return load


def begin_load(services: Services, request: ModelLoadRequest) -> ModelLoad:
    """Queue a load. Raises UnknownModel, and UnknownHook for a savepoint."""
    model = services.models.require(request.model_id, "model_id")
    with services.database.read() as session:
        structure = services.structures.find(session, model)
    if structure is not None:
        resolve_savepoints(request.options, structure)
    with services.database.write() as session:
        row = model_loads.create(session, model, request.options)
        answer = model_loads.resource(session, row)
    services.broker.wake(row.model)
    return answer


@router.get("/v1/models/load/{load_id}", summary="State of a model load", dependencies=[ADMIN])
def get_model_load(services: ServicesDep, load_id: LoadId) -> ModelLoad:
    return _load(services, load_id)


def _load(services: Services, load_id: str) -> ModelLoad:
    with services.database.read() as session:
        return model_loads.resource(session, model_loads.get(session, load_id))


@router.get("/v1/models/{model:path}", summary="One served model")
def get_model(services: ServicesDep, model: str) -> Model:
    """Find a model by its name or an alias; names of hub models contain slashes."""
    with services.database.read() as session:
        return _model(services, session, _served(services, model))


@router.get("/v1/model/structure", summary="Layers, widths and hook points of a model")
def get_model_structure(
    services: ServicesDep,
    model: Annotated[
        str | None,
        Query(
            max_length=1024,
            description="Default: the model loaded last, else the service's.",
        ),
    ] = None,
) -> ModelStructure:
    """As verified by the last worker that loaded the model."""
    with services.database.read() as session:
        if model is not None:
            name: str | None = _served(services, model)
        else:
            name = workers.model_loaded_last(session) or next(iter(services.models.names), None)
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
    loaded_at, served = workers.loaded_at(session, name), services.models.served(name)
    return Model(
        id=name,
        created=int(loaded_at if loaded_at is not None else services.started_at),
        status="loaded" if name in workers.held_models(session, workers.LIVE) else "available",
        base=served.source,
        adapter=served.adapter,
    )
