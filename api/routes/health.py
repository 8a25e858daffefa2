"""Probes for everyone, and metrics."""

from collections.abc import Callable
from typing import Annotated, Literal

import sqlalchemy as sa
from fastapi import APIRouter, Depends
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from pydantic import BaseModel
from starlette.responses import JSONResponse, PlainTextResponse, Response

from actograph.contract.errors import ActographError, ServiceUnavailable
from api import metrics
from api.auth import READ
from api.dependencies import AllServicesDep, Services
from storage.queue import workers

router = APIRouter(tags=["health"])


class Health(BaseModel):
    status: Literal["ok", "unavailable"]
    #: check -> "ok" or the fault; `worker` does not affect the status
    checks: dict[str, str]


def _run_checks(services: AllServicesDep) -> Health:
    checks: dict[str, Callable[[], None]] = {
        "database": services.database.ping,
        "broker": services.broker.ping,
        "store": services.store.reach,
        "worker": lambda: _check_worker(services),
    }
    outcomes = {name: _outcome(check) for name, check in checks.items()}
    # the API serves requests without a worker
    is_ready = all(state == "ok" for name, state in outcomes.items() if name != "worker")
    return Health(status="ok" if is_ready else "unavailable", checks=outcomes)


def _outcome(check: Callable[[], None]) -> str:
    try:
        check()
    except ActographError as error:
        return error.message
    except (OSError, sa.exc.SQLAlchemyError) as error:
        return f"failed: {type(error).__name__}"
    return "ok"


def _check_worker(services: Services) -> None:
    with services.database.read() as session:
        if not workers.loaded_models(session):
            raise ServiceUnavailable("no worker has a model loaded; jobs wait until one has")


HealthDep = Annotated[Health, Depends(_run_checks)]
#: status of an answer by the status of the service
CODES = {"ok": 200, "unavailable": 503}


@router.get("/livez", summary="The process runs", response_class=PlainTextResponse)
async def get_livez() -> str:
    return "ok\n"


@router.get(
    "/readyz",
    summary="The service can answer requests",
    response_class=PlainTextResponse,
    responses={503: {"description": "A check failed; the lines name it.", "content": {"text/plain": {}}}},
)
def get_readyz(health: HealthDep) -> PlainTextResponse:
    """Check database, broker and store, one per line. A missing worker is reported but is no failure."""
    lines = [f"[{'+' if state == 'ok' else '-'}]{name} {state}" for name, state in health.checks.items()]
    return PlainTextResponse("\n".join([health.status, *lines]) + "\n", CODES[health.status])


@router.get(
    "/health",
    summary="The same as /readyz, in JSON",
    response_model=Health,
    responses={503: {"model": Health, "description": "A check failed."}},
)
def get_health(health: HealthDep) -> JSONResponse:
    return JSONResponse(health.model_dump(), CODES[health.status])


@router.get(
    "/metrics",
    summary="Metrics in Prometheus' text format",
    dependencies=[READ],
    response_class=PlainTextResponse,
)
def get_metrics(services: AllServicesDep) -> Response:
    """All metrics of docs/operate/monitoring.md. They are sums over all owners and name none."""
    return Response(metrics.render(services), media_type=CONTENT_TYPE_PLAIN_0_0_4)
