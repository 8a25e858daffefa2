"""Jobs: the list with its filters, and the forms that change jobs."""

from functools import partial
from typing import Annotated, Any, Literal, cast, get_args

from fastapi import APIRouter, Form, Query, Request
from pydantic import BaseModel
from starlette.responses import Response

from actograph.contract.errors import Conflict, InvalidRequest
from actograph.contract.job_specs import ListedKind
from actograph.contract.resources import JobStatus
from api.auth import READ, SUBMIT
from api.dependencies import Services, ServicesDep, slow
from api.pages.live import digest
from api.pages.problems import change_each
from api.pages.rendering import render, see_other
from api.routes.jobs import cancel_job, delete_job, list_jobs, retry_job
from api.routes.models import list_models
from storage.index.pages import PageOptions
from storage.jobs import control, jobs
from storage.jobs.jobs import JobFilter

router = APIRouter(include_in_schema=False, dependencies=[READ])

PAGE = 50


class JobListFilters(BaseModel):
    """Filters of the list, with the job that comes before the page; "" is no filter."""

    status: JobStatus | Literal[""] = ""
    kind: ListedKind | Literal[""] = ""
    model: str = ""
    tag: str = ""
    text: str = ""
    after: str = ""

    @property
    def chosen(self) -> dict[str, Any]:
        return self.model_dump(exclude={"after"})

    @property
    def wanted(self) -> JobFilter:
        return cast(JobFilter, {name: value for name, value in self.chosen.items() if value})


@router.get("/jobs")
def show_jobs(
    request: Request, services: ServicesDep, filters: Annotated[JobListFilters, Query()]
) -> Response:
    state = digest(services)
    page = PageOptions(limit=PAGE, after=filters.after or None)
    values = {
        "state": state,
        "page": list_jobs(services, page, **filters.wanted),
        "filters": filters.chosen,
        "statuses": list(JobStatus),
        "kinds": get_args(ListedKind),
        "models": [one.id for one in list_models(services).data],
    }
    return render(request, "jobs.html", values)


@router.get("/jobs/all", dependencies=[SUBMIT])
def show_changes_of_all(
    request: Request, services: ServicesDep, filters: Annotated[JobListFilters, Query()]
) -> Response:
    """A part of the list's page: the number of jobs that match, and what can be done with them."""
    with services.database.read() as session:
        counts = jobs.count(session, filters.wanted)
    total, running = sum(counts.values()), counts[JobStatus.IN_PROGRESS]
    values = {
        "filters": filters.chosen,
        "total": total,
        "cancellable": counts[JobStatus.QUEUED] + running,
        "deletable": total - running,
    }
    return render(request, "jobs_all.html", values)


@router.post("/jobs/all", dependencies=[SUBMIT])
@slow
def change_all_jobs(
    request: Request,
    services: ServicesDep,
    filters: Annotated[JobListFilters, Query()],
    action: Annotated[Literal["cancel", "delete"], Form()],
    total: Annotated[int, Form()],
) -> Response:
    """Change all jobs that match, unless they are more than the `total` that the caller was shown."""
    with services.database.read() as session:
        now = sum(jobs.count(session, filters.wanted).values())
    if now > total:
        raise Conflict(f"{now} jobs match now, {total} did when you looked; look again")
    change = control.cancel_matching if action == "cancel" else control.delete_matching
    change(services.database, filters.wanted)
    return see_other(f"/jobs?{request.url.query}")


@router.post("/jobs", dependencies=[SUBMIT])
def change_jobs(
    request: Request,
    services: ServicesDep,
    filters: Annotated[JobListFilters, Query()],
    action: Annotated[str, Form()],
    ids: Annotated[list[str], Form(max_length=PAGE, default_factory=list)],
) -> Response:
    """Change the chosen jobs, then lead back to the list with its filters."""
    change_each(partial(_change, services, action), ids, "jobs")
    return see_other(f"/jobs?{request.url.query}")


@router.post("/jobs/{job_id}", dependencies=[SUBMIT])
def change_job(services: ServicesDep, job_id: str, action: Annotated[str, Form()]) -> Response:
    _change(services, action, job_id)
    return see_other("/jobs" if action == "delete" else f"/jobs/{job_id}")


def _change(services: Services, action: str, job_id: str) -> None:
    actions = {"cancel": cancel_job, "retry": retry_job, "delete": delete_job}
    if action not in actions:
        raise InvalidRequest(f"action is one of {', '.join(actions)}", param="action")
    actions[action](services, job_id)
