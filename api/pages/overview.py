"""The overview: queue, workers, memory, rate, time left, recent failures and storage."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from actograph.contract.resources import Job, JobStatus
from actograph.contract.roles import Role
from api.auth import READ
from api.dependencies import Services, ServicesDep
from api.pages.live import digest
from api.pages.rendering import render
from api.routes.jobs import list_jobs
from api.routes.ops import get_queue, list_workers
from storage.accounts import quotas
from storage.index.pages import PageOptions
from storage.index.visible import owner_of

router = APIRouter(include_in_schema=False, dependencies=[READ])

SHOWN = 8


@router.get("/")
def show_overview(request: Request, services: ServicesDep) -> Response:
    state = digest(services)
    running = _newest(services, JobStatus.IN_PROGRESS)
    etas = [job.eta_seconds for job in running if job.eta_seconds is not None]
    rates = [job.samples_per_second for job in running if job.samples_per_second is not None]
    is_admin = request.state.access.role is Role.ADMIN
    stored, left = _storage(services)
    values = {
        "state": state,
        "queue": get_queue(services),
        # other roles see the numbers of workers alone
        "workers": list_workers(services).data if is_admin else [],
        "running": running,
        "recent": _newest(services),
        "failures": _newest(services, JobStatus.FAILED),
        "eta": max(etas, default=None),
        "rate": sum(rates) if rates else None,
        "stored": stored,
        "left": left,
    }
    return render(request, "overview.html", values)


def _newest(services: Services, status: JobStatus | None = None) -> list[Job]:
    return list_jobs(services, PageOptions(limit=SHOWN), status=status).data


def _storage(services: Services) -> tuple[int, int | None]:
    """Stored bytes of the caller, or of all owners for an admin, and the bytes that the quotas leave."""
    with services.database.read() as session:
        me, used = owner_of(session), quotas.used(session)
        left = quotas.read(session, services.settings).left(me or "")
    return used.get(me, 0) if me is not None else sum(used.values()), left
