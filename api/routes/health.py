"""Probes for everyone, and metrics."""

from collections.abc import Callable
from typing import Annotated, Literal

import sqlalchemy as sa
from fastapi import APIRouter, Depends, Query
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from pydantic import BaseModel
from starlette.responses import JSONResponse, PlainTextResponse, Response

from actograph.contract.errors import ActographError, ServiceUnavailable
from api import metrics
from api.auth import READ
from api.dependencies import AllServicesDep, Services
from storage.queue import workers

router = APIRouter(tags=["health"])

#: reported, but not required: the API serves requests without a worker
_OF_JOBS = "worker"


class Health(BaseModel):
    status: Literal["ok", "unavailable"]
    #: check -> "ok" or the fault; `worker` does not affect the status
    checks: dict[str, str]


def _run_checks(services: AllServicesDep) -> dict[str, str]:
    checks: dict[str, Callable[[], None]] = {
        "database": services.database.ping,
        "broker": services.broker.ping,
        "store": services.store.reach,
        _OF_JOBS: lambda: _check_worker(services),
    }
    return {name: _outcome(check) for name, check in checks.items()}


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


ChecksDep = Annotated[dict[str, str], Depends(_run_checks)]


def _is_ready(checks: dict[str, str]) -> bool:
    return all(state == "ok" for name, state in checks.items() if name != _OF_JOBS)


@router.get("/livez", summary="The process runs", response_class=PlainTextResponse)
async def get_livez() -> str:
    return "ok\n"


@router.get(
    "/readyz",
    summary="The service can answer requests",
    response_class=PlainTextResponse,
    responses={503: {"description": "A check failed; the lines name it.", "content": {"text/plain": {}}}},
)
def get_readyz(checks: ChecksDep, verbose: Annotated[str | None, Query()] = None) -> PlainTextResponse:
    """Check database, broker and store. A missing worker is reported but is no failure.

    `?verbose` lists every check, one per line.
    """
    ready = _is_ready(checks)
    lines = {name: f"[{'+' if state == 'ok' else '-'}]{name} {state}" for name, state in checks.items()}
    if ready and verbose is None:
        missing = [line for name, line in lines.items() if checks[name] != "ok"]
        return PlainTextResponse("\n".join(["ok", *missing]) + "\n")
    end = "readyz check passed" if ready else "readyz check failed"
    return PlainTextResponse("\n".join([*lines.values(), end]) + "\n", 200 if ready else 503)


@router.get(
    "/health",
    summary="The same as /readyz, in JSON",
    response_model=Health,
    responses={503: {"model": Health, "description": "A check failed."}},
)
def get_health(checks: ChecksDep) -> JSONResponse:
    ready = _is_ready(checks)
    body = Health(status="ok" if ready else "unavailable", checks=checks)
    return JSONResponse(body.model_dump(), 200 if ready else 503)


@router.get(
    "/metrics",
    summary="Metrics in Prometheus' text format",
    dependencies=[READ],
    response_class=PlainTextResponse,
)
def get_metrics(services: AllServicesDep) -> Response:
    """All metrics of docs/operate/monitoring.md. They are sums over all owners and name none."""
    return Response(metrics.render(services), media_type=CONTENT_TYPE_PLAIN_0_0_4)
