"""Probes: is the process alive, and can it serve?"""

from collections.abc import Callable
from typing import Annotated, Literal

import sqlalchemy as sa
from fastapi import APIRouter, Query
from pydantic import BaseModel
from starlette.responses import JSONResponse, PlainTextResponse

from actograph.contract.errors import ActographError, ServiceUnavailable
from api.dependencies import Services, ServicesDep
from api.errors import documented
from storage import workers

router = APIRouter(tags=["health"])


class Health(BaseModel):
    status: Literal["ok", "unavailable"]
    #: check -> "ok" or what is wrong
    checks: dict[str, str]


_NOT_READY = "[+]database ok\n[+]broker ok\n[+]store ok\n[-]worker none is ready\nreadyz check failed\n"
_UNAVAILABLE = {
    "status": "unavailable",
    "checks": {"database": "ok", "broker": "ok", "store": "ok", "worker": "none is ready"},
}


@router.get("/livez", operation_id="livez", summary="The process answers", response_class=PlainTextResponse)
async def livez() -> str:
    return "ok\n"


@router.get(
    "/readyz",
    operation_id="readyz",
    summary="Requests can be served",
    response_class=PlainTextResponse,
    responses={
        503: {
            "description": "Something is missing; the lines say what.",
            "content": {"text/plain": {"example": _NOT_READY}},
        },
        **documented(422),
    },
)
def readyz(services: ServicesDep, verbose: Annotated[str | None, Query()] = None) -> PlainTextResponse:
    """`?verbose` lists every check, one to a line."""
    checks = run_checks(services)
    ready = all(state == "ok" for state in checks.values())
    lines = [f"[{'+' if state == 'ok' else '-'}]{name} {state}" for name, state in checks.items()]
    if ready and verbose is None:
        return PlainTextResponse("ok\n")
    lines.append("readyz check passed" if ready else "readyz check failed")
    return PlainTextResponse("\n".join(lines) + "\n", 200 if ready else 503)


@router.get(
    "/health",
    operation_id="health",
    summary="The same as /readyz, in JSON",
    response_model=Health,
    responses={
        503: {
            "model": Health,
            "description": "Something is missing.",
            "content": {"application/json": {"example": _UNAVAILABLE}},
        }
    },
)
def health(services: ServicesDep) -> JSONResponse:
    checks = run_checks(services)
    ready = all(state == "ok" for state in checks.values())
    body = Health(status="ok" if ready else "unavailable", checks=checks)
    return JSONResponse(body.model_dump(), 200 if ready else 503)


def run_checks(services: Services) -> dict[str, str]:
    """`database`, `broker`, `store` and `worker`, each "ok" or what is wrong with it."""
    checks: dict[str, Callable[[], None]] = {
        "database": services.database.ping,
        "broker": services.broker.ping,
        "store": services.store.check,
        "worker": lambda: _check_worker(services),
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
            raise ServiceUnavailable("no worker has a model loaded")
