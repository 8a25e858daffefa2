"""Care for a service: its features, queue, workers and store, probes for everyone, and metrics."""

import logging
from contextlib import suppress
from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query, Request
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from pydantic import BaseModel
from sqlalchemy.exc import SQLAlchemyError
from starlette.responses import PlainTextResponse, Response

from actograph import __version__
from actograph.contract.base import ListPage
from actograph.contract.errors import ActographError, ServiceUnavailable
from actograph.contract.operations import (
    Capabilities,
    Features,
    Limits,
    QueueState,
    StoreGc,
    StoreVerification,
    Worker,
    WorkerStatus,
    of_contract,
)
from actograph.contract.specs import PauseRequest
from actograph.settings import functions_of
from api import metrics
from api.auth import ADMIN, READ, Caller
from api.dependencies import AllServicesDep, ServicesDep, slow
from api.routes.models import list_models
from api.submission import MAX_SAMPLES
from storage.accounts import api_keys, quotas
from storage.index import pages
from storage.index.database import now
from storage.queue import pause, view, workers
from storage.tables.models import WorkerRow
from storage.upkeep import store_gc, store_verify

log = logging.getLogger(__name__)

router = APIRouter()

SHOWN_JOBS = 20
#: paths of OpenAI's API
OPENAI_PATHS = (
    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/models", "/v1/files", "/v1/batches"
)  # fmt: skip

After = Annotated[str | None, Query(max_length=128, description="`next` of the previous page.")]
Seconds = Annotated[float, Query(gt=0, le=60, description="Approximate time limit of one page.")]


@router.get(
    "/v1/capabilities", tags=["models"], dependencies=[READ], summary="Features and limits of the service"
)
def get_capabilities(services: ServicesDep, request: Request) -> Capabilities:
    """Job kinds, hook points, tasks, scorers, limits, served models and features of the service."""
    paths, settings = request.app.openapi()["paths"], services.settings
    shared = of_contract()
    shared["evaluation"]["scorers"] += services.scorers.names
    shared["evaluation"]["tools"] += functions_of(settings.user_tools)
    with services.database.read() as session:
        needs_key = bool(settings.api_keys) or api_keys.exist(session)
    return Capabilities(
        version=__version__,
        models=list_models(services).data,
        limits=Limits(
            max_upload_bytes=settings.max_upload_bytes,
            max_body_bytes=settings.max_body_bytes,
            store_quota_bytes=settings.store_quota_bytes,
            owner_quota_bytes=quotas.owner_limit(settings),
            samples_per_job=MAX_SAMPLES,
        ),
        features=Features(
            database="sqlite" if services.database.is_sqlite else "postgres",
            artifacts="s3" if settings.effective_artifact_url.startswith("s3://") else "files",
            authentication=needs_key,
            model_switching=settings.model_switching,
        ),
        openai_endpoints=[path for path in OPENAI_PATHS if path in paths],
        endpoints=[f"{method.upper()} {path}" for path, methods in paths.items() for method in methods],
        **shared,
    )


@router.post(
    "/v1/store/gc", tags=["store"], dependencies=[ADMIN], summary="Remove expired and unreferenced data"
)
def collect_garbage(
    services: ServicesDep,
    dry_run: Annotated[bool, Query(description="Only list what would be removed.")] = False,
    after: After = None,
    seconds: Seconds = 10.0,
) -> StoreGc:
    """Remove one page; repeat with `after` until `next` is null."""
    return store_gc.collect(services.database, services.store, dry_run=dry_run, after=after, seconds=seconds)


@router.post(
    "/v1/store/verify",
    tags=["store"],
    dependencies=[ADMIN],
    summary="Verify stored files against the index, by checksum",
)
@slow
def verify_store(
    services: ServicesDep,
    after: After = None,
    sample: Annotated[float, Query(gt=0, le=1, description="Share of stored files to read.")] = 1.0,
    seed: Annotated[int, Query(ge=0, lt=2**63, description="Seed that selects the share.")] = 0,
    seconds: Seconds = 10.0,
) -> StoreVerification:
    """Verify one page; repeat with `after`, and the same sample and seed, until `next` is null."""
    return store_verify.verify(
        services.database, services.store, after=after, sample=sample, seed=seed, seconds=seconds
    )


@router.get("/v1/queue", tags=["queue"], dependencies=[READ], summary="Waiting and running jobs")
def get_queue(services: ServicesDep) -> QueueState:
    messages = None
    with suppress(ServiceUnavailable):
        messages = services.broker.messages()
    with services.database.read() as session:
        held = pause.active(session, services.store, services.settings)
        known = workers.find(session)
        return QueueState(
            paused=bool(held),
            paused_reason=pause.in_words(held),
            pauses=held,
            jobs=view.job_counts(session),
            samples=view.open_samples(session),
            next=list(view.next_jobs(session, SHOWN_JOBS)),
            messages=messages,
            workers=view.worker_counts(known),
            sessions_to_store=view.sessions_to_store(known),
            waiting_reason=view.waiting_reason(session, known),
        )


@router.post("/v1/queue/pause", tags=["queue"], dependencies=[READ, ADMIN], summary="Pause the queue")
def pause_queue(services: ServicesDep, by: Caller, request: PauseRequest | None = None) -> QueueState:
    """Pause the queue. Workers finish their running samples and claim no other; jobs are still accepted.

    The pause lasts, also across restarts, until `POST /v1/queue/resume`. A second pause changes the reason.
    """
    reason = None if request is None else request.reason
    with services.database.write() as session:
        pause.start(session, by=by, reason=reason)
    log.warning("the queue is paused by %s: %s", by, reason or "no reason given")
    return get_queue(services)


@router.post("/v1/queue/resume", tags=["queue"], dependencies=[READ, ADMIN], summary="Resume the queue")
def resume_queue(services: ServicesDep, by: Caller) -> QueueState:
    """Resume the queue; idle workers look within seconds. A pause for lack of disk space stays."""
    with services.database.write() as session:
        was_paused = pause.end(session)
    if was_paused:
        log.warning("the queue is resumed by %s", by)
    return get_queue(services)


@router.get("/v1/workers", tags=["queue"], dependencies=[READ, ADMIN], summary="Workers, the newest first")
def list_workers(services: ServicesDep) -> ListPage[Worker]:
    """Live workers, and workers that ended within a day.

    A worker is `silent` after half of the time in which its samples are freed.
    """
    with services.database.read() as session:
        since = now(session) - services.settings.lease_seconds / 2

        def shown(row: WorkerRow) -> Worker:
            found = workers.resource(row)
            is_silent = row.status in workers.ALIVE and row.heartbeat_at < since
            return found.model_copy(update={"status": WorkerStatus.SILENT}) if is_silent else found

        return pages.page(workers.find(session), False, shown)


class Health(BaseModel):
    status: Literal["ok", "unavailable"]
    #: check -> "ok" or the fault; `worker` does not affect the status
    checks: dict[str, str]
    #: that live workers hold
    models: list[str]
    #: the same, under the name of older scripts
    loaded_models: list[str]


def _health(services: AllServicesDep, response: Response) -> Health:
    held: set[str] = set()

    def find_worker() -> None:
        with services.database.read() as session:
            held.update(workers.held_models(session, workers.LIVE))
            if not held:
                raise ServiceUnavailable("no worker has a model loaded; jobs wait until one has")

    checks = {"database": services.database.ping, "broker": services.broker.ping}
    checks |= {"store": services.store.reach, "worker": find_worker}
    found = dict.fromkeys(checks, "ok")
    for name, check in checks.items():
        try:
            check()
        except ActographError as error:
            found[name] = error.message
        except (OSError, SQLAlchemyError) as error:
            found[name] = f"failed: {type(error).__name__}"
    # the API serves requests without a worker
    is_ready = all(state == "ok" for name, state in found.items() if name != "worker")
    response.status_code = 200 if is_ready else 503
    return Health(
        status="ok" if is_ready else "unavailable",
        checks=found,
        models=sorted(held),
        loaded_models=sorted(held),
    )


HealthDep = Annotated[Health, Depends(_health)]


@router.get("/livez", tags=["health"], summary="The process runs", response_class=PlainTextResponse)
async def get_livez() -> str:
    return "ok\n"


@router.get(
    "/readyz",
    tags=["health"],
    summary="The service can answer requests",
    response_class=PlainTextResponse,
    responses={503: {"description": "A check failed; the lines name it.", "content": {"text/plain": {}}}},
)
def get_readyz(health: HealthDep) -> str:
    """Check database, broker and store, one per line. A missing worker is reported but is no failure."""
    lines = [f"[{'+' if state == 'ok' else '-'}]{name} {state}" for name, state in health.checks.items()]
    return "\n".join([health.status, *lines]) + "\n"


@router.get(
    "/health",
    tags=["health"],
    summary="The same as /readyz, in JSON",
    responses={503: {"model": Health, "description": "A check failed."}},
)
def get_health(health: HealthDep) -> Health:
    return health


@router.get(
    "/metrics",
    tags=["health"],
    summary="Metrics in Prometheus' text format",
    dependencies=[READ],
    response_class=PlainTextResponse,
)
def get_metrics(services: AllServicesDep) -> Response:
    """All metrics of docs/operate/monitoring.md. They are sums over all owners and name none."""
    return Response(metrics.render(services), media_type=CONTENT_TYPE_PLAIN_0_0_4)
