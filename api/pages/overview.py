"""The overview: queue, workers, models, running jobs, recent failures and storage."""

from fastapi import Request
from starlette.responses import HTMLResponse, Response

from actograph.contract.resources import Job, JobStatus
from api.dependencies import Services, ServicesDep
from api.pages.rendering import render
from api.routes.models import list_models
from api.routes.service.queue import get_queue, list_workers
from api.routes.sessions import get_store_usage
from api.routing import READ, Routes
from storage.accounts import quotas
from storage.index.pages import Order
from storage.jobs import jobs
from storage.queue import job_view

router = Routes(include_in_schema=False)

SHOWN = 8


@router.add("GET", "/", READ, "Overview", response_class=HTMLResponse)
def show_overview(request: Request, services: ServicesDep) -> Response:
    lists = _lists(services)
    etas = [job.eta_seconds for job in lists["running"] if job.eta_seconds is not None]
    rates = [job.samples_per_second for job in lists["running"] if job.samples_per_second]
    access = request.state.access
    values = {
        "queue": get_queue(services),
        # other roles see the numbers of workers alone
        "workers": list_workers(services).data if access.sees_only is None else [],
        "models": list_models(services).data,
        **lists,
        "usage": get_store_usage(services),
        "eta": max(etas) if etas else None,
        "rate": sum(rates) if rates else None,
    }
    return render(request, "overview.html", values)


def _lists(services: Services) -> dict[str, list[Job]]:
    """Running, queued, failed and recent jobs; the queue is read once for all of them."""
    chosen: dict[str, tuple[JobStatus | None, Order]] = {
        "running": (JobStatus.IN_PROGRESS, "desc"),
        "queued": (JobStatus.QUEUED, "asc"),
        "failures": (JobStatus.FAILED, "desc"),
        "recent": (None, "desc"),
    }
    with services.database.read() as session:
        rows = {
            name: jobs.find(session, status=status, limit=SHOWN, order=order)[0]
            for name, (status, order) in chosen.items()
        }
        distinct = {row.id: row for of_list in rows.values() for row in of_list}
        limits = quotas.read(session, services.settings)
        trouble = services.broker.trouble
        found = job_view.listed(session, list(distinct.values()), limits, broker_trouble=trouble)
    by_id = {job.id: job for job in found}
    return {name: [by_id[row.id] for row in of_list] for name, of_list in rows.items()}
