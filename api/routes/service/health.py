"""Probes: liveness and readiness."""

import asyncio
import time
from collections.abc import Callable
from typing import Annotated, Literal

import sqlalchemy as sa
from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, PlainTextResponse

from actograph.contract.errors import ActographError, ServiceUnavailable
from api.dependencies import Services
from storage.queue import workers

router = APIRouter(tags=["health"])

#: shortest time between two rounds of checks
CHECK_SECONDS = 1.0
#: reported, but not required: the API serves requests without a worker
_OF_JOBS = "worker"


class Health(BaseModel):
    status: Literal["ok", "unavailable"]
    #: check -> "ok" or the fault; `worker` does not affect the status
    checks: dict[str, str]


class Checks:
    """Result of the checks, shared by all callers, since probes need no key. For the event loop alone."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._began = 0.0
        self._running: asyncio.Future[dict[str, str]] | None = None

    async def outcome(self) -> dict[str, str]:
        """Return "ok" or the fault for `database`, `broker`, `store` and `worker`."""
        if self._running is None or (self._running.done() and time.monotonic() > self._began + CHECK_SECONDS):
            self._began = time.monotonic()
            self._running = asyncio.ensure_future(run_in_threadpool(_run_checks, self._services))
        # a caller that disconnects must not cancel the checks of others
        return await asyncio.shield(self._running)


async def _outcome_of_all(request: Request) -> dict[str, str]:
    checks: Checks = request.app.state.checks
    return await checks.outcome()


ChecksDep = Annotated[dict[str, str], Depends(_outcome_of_all)]


_NO_BROKER = "the broker does not answer"
_READY = "[+]database ok\n[+]broker ok\n[+]store ok\n[+]worker ok\nreadyz check passed\n"
_NOT_READY = f"[+]database ok\n[-]broker {_NO_BROKER}\n[+]store ok\n[+]worker ok\nreadyz check failed\n"
_UNAVAILABLE = {
    "status": "unavailable",
    "checks": {"database": "ok", "broker": _NO_BROKER, "store": "ok", "worker": "ok"},
}


@router.get(
    "/livez",
    summary="The process runs",
    response_class=PlainTextResponse,
    responses={200: {"content": {"text/plain": {"example": "ok\n"}}}},
)
async def livez() -> str:
    return "ok\n"


@router.get(
    "/readyz",
    summary="The service can answer requests",
    response_class=PlainTextResponse,
    responses={
        200: {"content": {"text/plain": {"example": _READY}}},
        503: {
            "description": "A check failed; the lines name it.",
            "content": {"text/plain": {"example": _NOT_READY}},
        },
    },
)
async def readyz(checks: ChecksDep, verbose: Annotated[str | None, Query()] = None) -> PlainTextResponse:
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
    responses={
        503: {
            "model": Health,
            "description": "A check failed.",
            "content": {"application/json": {"example": _UNAVAILABLE}},
        }
    },
)
async def health(checks: ChecksDep) -> JSONResponse:
    ready = _is_ready(checks)
    body = Health(status="ok" if ready else "unavailable", checks=checks)
    return JSONResponse(body.model_dump(), 200 if ready else 503)


def _is_ready(checks: dict[str, str]) -> bool:
    return all(state == "ok" for name, state in checks.items() if name != _OF_JOBS)


def _run_checks(services: Services) -> dict[str, str]:
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
