"""/v1/models in OpenAI's form, the structure of a model, and model loads."""

import asyncio
from contextlib import suppress
from typing import Annotated

from anyio import CapacityLimiter, to_thread
from fastapi import Query, Request
from sqlalchemy.orm import Session
from starlette.responses import JSONResponse

from actograph.contract.errors import ActographError, NotFound
from actograph.contract.models.model_loads import ModelLoadRequest, resolve_savepoints
from actograph.contract.resources import JobStatus, ListPage, Model, ModelLoad, ModelStructure
from api.dependencies import LoadId, Services, ServicesDep
from api.problems.validation import parse_body
from api.requests.request_body import JsonBody
from api.routing import ADMIN, READ, Body, Routes
from storage.queue import model_loads, workers

router = Routes(tags=["models"])

BODY = Body(
    ModelLoadRequest,
    {
        "another model": {
            "model_id": "Qwen/Qwen3-0.6B",
            "dtype": "bfloat16",
            "savepoints": [{"name": "probe_layer", "selector": "model.layers[12].output"}],
        }
    },
)


@router.add("GET", "/v1/models", READ, "Served models")
def list_models(services: ServicesDep) -> ListPage[Model]:
    """Status `loaded` if a live worker holds the model, else `available`."""
    with services.database.read() as session:
        data = [_model(services, session, name) for name in services.models.names]
    return ListPage[Model](
        data=data, first_id=data[0].id if data else None, last_id=data[-1].id if data else None
    )


@router.add(
    "POST",
    "/v1/models/load",
    ADMIN,
    "Load a model on a worker",
    body=BODY,
    alias="/models/load",
    lane="own",
    status_code=202,
    response_model=ModelLoad,
    responses={200: {"model": ModelLoad, "description": "With `wait`: the model is loaded."}},
)
async def load_model(http: Request, services: ServicesDep, body: JsonBody) -> JSONResponse:
    """A worker unloads its model before its next batch, then loads and verifies this one.

    `GET /v1/models/load/{id}` shows the progress. If the model is refused, `error` has the reason and the
    worker keeps its former model. With `wait` the answer is 200 once the model is loaded, an error if it is
    refused, and 202 if the load still runs after the time limit. A load continues if the client disconnects.
    """
    request = parse_body(ModelLoadRequest, body)
    threads: CapacityLimiter = http.app.state.chat_threads
    load = await to_thread.run_sync(create_load, services, request, limiter=threads)
    if request.wait:
        with suppress(TimeoutError):
            async with asyncio.timeout(services.settings.chat_timeout_seconds):
                await http.app.state.job_ends.wait(load.id)
        load = await to_thread.run_sync(_read_load, services, load.id, limiter=threads)
    if load.status.is_terminal() and load.status is not JobStatus.COMPLETED:
        raise LoadFailed(load)
    return JSONResponse(load.model_dump(mode="json"), 200 if load.status.is_terminal() else 202)


class LoadFailed(ActographError):
    """The model was not loaded."""

    def __init__(self, load: ModelLoad) -> None:
        """`load`: a failed or cancelled load."""
        error = load.error
        super().__init__(f"load {load.id} was cancelled" if error is None else error.message)
        # a class has one code, but each load its own
        self.code = "conflict" if error is None else error.type  # type: ignore[misc]
        self.status = 409 if error is None else 422  # type: ignore[misc]


def create_load(services: Services, request: ModelLoadRequest) -> ModelLoad:
    """Queue a load and wake the workers of its model. Raises UnknownModel, UnknownHook."""
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


def _read_load(services: Services, load_id: str) -> ModelLoad:
    with services.database.read() as session:
        return model_loads.resource(session, model_loads.get(session, load_id))


@router.add("GET", "/v1/models/load/{load_id}", ADMIN, "State of a model load")
def get_model_load(services: ServicesDep, load_id: LoadId) -> ModelLoad:
    return _read_load(services, load_id)


@router.add("GET", "/v1/models/{model:path}", READ, "One served model")
def get_model(services: ServicesDep, model: str) -> Model:
    """Find a model by its name or an alias; names of hub models contain slashes."""
    with services.database.read() as session:
        return _model(services, session, _served(services, model))


@router.add("GET", "/v1/model/structure", READ, "Layers, widths and hook points of a model", errors=[404])
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
            name = workers.model_loaded_last(session) or services.models.default
        if name is None:
            raise NotFound("no model is served; set ACTOGRAPH_MODEL or ACTOGRAPH_ALLOWED_MODELS")
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
