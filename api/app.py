"""The application: its services, middleware and routes."""

import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from fastapi import Depends, FastAPI
from fastapi.routing import iter_route_contexts
from pydantic.json_schema import models_json_schema

from actograph import __version__
from actograph.contract.base import Problem
from actograph.settings import Settings
from api.auth import Authentication
from api.background import Background
from api.dependencies import Services, refuse_unknown_query, use_reserve
from api.errors import DOCUMENTED, install
from api.middleware.bodies import BodyDrain, BodyLimit, refuse_nul
from api.middleware.path_prefix import PathPrefix
from api.middleware.request_ids import RequestIds, name_in_logs
from api.openai.chat_watch import ChatWatch
from api.pages import site
from api.routes import (
    batches,
    chat,
    comparisons,
    files,
    jobs,
    keys,
    matrix,
    models,
    ops,
    patching,
    saes,
    sessions,
    vectors,
)
from api.served_models import ServedModels
from evals.user_functions.functions import UserFunctions
from storage import migrate, redaction
from storage.artifacts.factory import open_store
from storage.artifacts.store import PublicEndpoint
from storage.broker.broker import Broker
from storage.broker.hints import HintSender
from storage.index import deployment
from storage.index.database import Database

TAGS = {
    "jobs": "Evaluations and captures: submit, follow, cancel, read.",
    "chat": "OpenAI's routes: conversations and texts, answered through the queue.",
    "batches": "Files of chat and completion requests, in OpenAI's form.",
    "comparisons": "Two conditions of a job on the same problems.",
    "sessions": "Stored activations: search, slice, download, change, delete.",
    "store": "The artifact store: clean up and verify.",
    "files": "Uploaded datasets and batches.",
    "vectors": "Stored vectors for interventions.",
    "saes": "Stored SAEs, with which captures encode.",
    "models": "Served models and their structure.",
    "queue": "The queue and its workers.",
    "keys": "API keys and their roles.",
    "health": "Probes.",
}
DESCRIPTION = """\
Submit evaluation and capture jobs, follow them, and read the score and activations of every sample.

Errors are problem details (RFC 9457); their `error` member has OpenAI's form.
"""


def create_app(settings: Settings | None = None) -> FastAPI:
    """Create the HTTP service. Database, store and broker open when it starts."""
    settings = settings or Settings()
    redaction.conceal(settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        services = open_services(settings)
        _stop_streams_on_signal(services)
        app.state.services = services
        background = app.state.background = Background(services)
        services.database.announce = HintSender(settings.broker_url)
        app.state.chats = ChatWatch(services)
        background.start()
        try:
            yield
        finally:
            services.stopping.set()
            background.stop()
            await app.state.chats.close()
            services.scorers.close()
            services.broker.close()
            services.database.close()

    app = FastAPI(
        title="Actograph",
        version=__version__,
        description=DESCRIPTION,
        lifespan=lifespan,
        dependencies=[Depends(refuse_nul), Depends(refuse_unknown_query), Depends(use_reserve)],
        responses=DOCUMENTED,
        redirect_slashes=False,
        openapi_tags=[{"name": name, "description": text} for name, text in TAGS.items()],
        generate_unique_id_function=lambda route: route.name,
        separate_input_output_schemas=False,
    )
    install(app)
    _document_problems(app)
    for module in (
        jobs,
        patching,
        matrix,
        chat,
        batches,
        comparisons,
        sessions,
        files,
        saes,
        models,
        ops,
        keys,
    ):
        app.include_router(module.router)
    app.include_router(vectors.router, prefix="/v1/vectors")
    # the name of older scripts
    app.include_router(vectors.router, prefix="/v1/interventions", include_in_schema=False)
    site.install(app)
    # the last one added sees a request first
    app.add_middleware(BodyLimit, settings=settings)
    app.add_middleware(Authentication, settings=settings)
    app.add_middleware(RequestIds)
    app.add_middleware(BodyDrain)
    if settings.root_path:
        _require_free_prefix(app, settings.root_path)
        app.add_middleware(PathPrefix, prefix=settings.root_path)
    return app


def _require_free_prefix(app: FastAPI, prefix: str) -> None:
    """Raises ValueError for a prefix that paths of the service begin with: requests would be ambiguous."""
    paths = [route.path or "" for route in iter_route_contexts(app.routes)]
    if (taken := next((path for path in paths if f"{path}/".startswith(f"{prefix}/")), None)) is not None:
        raise ValueError(f"ACTOGRAPH_ROOT_PATH: the service has a path {taken}; choose another than {prefix}")


def _document_problems(app: FastAPI) -> None:
    """Add the form of all errors to FastAPI's document."""
    written = app.openapi
    template = "#/components/schemas/{model}"
    _, forms = models_json_schema([(Problem, "serialization")], ref_template=template)

    def document() -> dict[str, Any]:
        found = written()
        found["components"]["schemas"] |= forms["$defs"]
        return found

    app.openapi = document  # type: ignore[method-assign]


def process_app() -> FastAPI:
    """Set up a serving process and create its application."""
    settings = Settings()
    redaction.set_up_logging(settings)
    name_in_logs()
    if parent := multiprocessing.parent_process():
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    return create_app(settings)


def _end_with(parent: Any) -> None:
    """End when the process that serves through several has died: this one would keep the port."""
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)


def _stop_streams_on_signal(services: Services) -> None:
    """End event streams as soon as a signal arrives, before uvicorn waits for open connections."""
    if threading.current_thread() is not threading.main_thread():
        return

    def stop(handle: Callable[..., Any], *args: Any) -> None:
        services.stopping.set()
        handle(*args)

    for sign in (signal.SIGTERM, signal.SIGINT):
        if callable(handle := signal.getsignal(sign)):
            signal.signal(sign, partial(stop, handle))


def open_services(settings: Settings) -> Services:
    """Open database, store and broker.

    Raises:
        ServiceUnavailable: the database has the schema of another version.
        ValueError: a URL in the settings is not valid.
    """
    # alembic reports every check of the schema at info
    logging.getLogger("alembic").setLevel(logging.WARNING)
    database = Database.of(settings)
    try:
        migrate.require_current(database)
        public = None
        if settings.s3_public_endpoint:
            public = PublicEndpoint(url=settings.s3_public_endpoint, addressing=settings.s3_public_addressing)
        store = open_store(settings.effective_artifact_url, public)
        deployment.mark_store(database, settings.effective_artifact_url)
        if database.reserve is not None:
            database.reserve.restore()
    except Exception:
        database.close()
        raise
    return Services(
        settings=settings,
        database=database,
        store=store,
        broker=Broker(settings.broker_url),
        models=ServedModels(settings),
        scorers=UserFunctions.of(settings.user_scorers, settings.user_function_seconds),
    )
