"""Jobs: the list with its filters, one job, and the forms that change jobs."""

from typing import Annotated

from fastapi import Form, Query, Request
from starlette.responses import HTMLResponse, Response

from actograph.contract.errors import ActographError
from actograph.contract.resources import JobResults, JobStatus
from actograph.contract.specs import ANALYSIS_KINDS, JOB_KINDS
from api.dependencies import After, JobId, ServicesDep
from api.pages.intervals import Interval, intervals
from api.pages.rendering import render, see_other
from api.routes.comparisons import get_job_comparison
from api.routes.jobs import cancel_job, delete_job, get_job, get_job_results, list_jobs, retry_job
from api.routing import READ, SUBMIT, Routes
from api.security.auth import Caller
from storage.index import events
from storage.index.pages import Order, PageOptions
from storage.samples import verdicts

router = Routes(include_in_schema=False)

PAGE = 50
#: samples in the grid of a job; the list of samples has all
GRID = 1000
EVENTS = 100


@router.add("GET", "/jobs", READ, "Jobs", response_class=HTMLResponse)
def show_jobs(
    request: Request,
    services: ServicesDep,
    *,
    status: Annotated[str, Query(max_length=32)] = "",
    kind: Annotated[str, Query(max_length=32)] = "",
    tag: Annotated[str, Query(max_length=64)] = "",
    after: After = None,
    order: Order = "desc",
) -> Response:
    wanted = JobStatus(status) if status in list(JobStatus) else None
    page = PageOptions(limit=PAGE, order=order, after=after or None)
    found = list_jobs(services, page, status=wanted, kind=kind or None, tag=tag or None)
    values = {
        "jobs": found.data,
        "has_more": found.has_more,
        "last_id": found.last_id,
        "filters": {"status": status, "kind": kind, "tag": tag, "order": order},
        "statuses": [one for one in JobStatus if one is not JobStatus.FINALIZING],
        "kinds": [*JOB_KINDS, *ANALYSIS_KINDS],
    }
    return render(request, "jobs.html", values)


@router.add("GET", "/jobs/{job_id}", READ, "One job", response_class=HTMLResponse)
def show_job(request: Request, services: ServicesDep, job_id: JobId) -> Response:
    job = get_job(services, job_id)
    if job.kind in ANALYSIS_KINDS:
        return see_other(f"/analyses/{job_id}")
    with services.database.read() as session:
        grid, has_more = verdicts.verdicts(session, job_id, GRID)
        groups = verdicts.error_groups(session, job_id)
        log = events.latest(session, job_id, EVENTS)
    results: JobResults | None = None
    trouble = ""
    try:
        results = get_job_results(services, job_id)
    except ActographError as error:
        trouble = error.message
    values = {
        "job": job,
        "is_over": job.status.is_terminal(),
        "results": results,
        "trouble": trouble,
        "intervals": _intervals(results),
        "has_sessions": (job.spec.get("capture") or {}).get("mode", "off") != "off",
        "analysis_kinds": list(ANALYSIS_KINDS),
        "has_conditions": len(job.spec.get("conditions") or []) > 1,
        "grid": grid,
        "has_more": has_more,
        "groups": groups,
        "events": log,
    }
    return render(request, "job.html", values)


@router.add("GET", "/jobs/{job_id}/comparison", READ, "Conditions, paired", lane="reads")
def show_comparison(request: Request, services: ServicesDep, job_id: JobId, baseline: str = "") -> Response:
    """The part of a job's page with the paired comparison, which is read after the page."""
    get_job(services, job_id)  # NotFound is a page of its own
    try:
        found = get_job_comparison(services, job_id, baseline=baseline or None)
    except ActographError as error:
        return render(request, "parts/trouble.html", {"trouble": error.message})
    return render(request, "parts/comparison.html", {"comparison": found})


@router.add("POST", "/jobs/{job_id}/cancel", SUBMIT, "Cancel a job")
def cancel(services: ServicesDep, job_id: JobId) -> Response:
    cancel_job(services, job_id)
    return see_other(f"/jobs/{job_id}")


@router.add("POST", "/jobs/{job_id}/retry", SUBMIT, "Retry a job")
def retry(services: ServicesDep, job_id: JobId, by: Caller) -> Response:
    retry_job(services, job_id, by)
    return see_other(f"/jobs/{job_id}")


@router.add("POST", "/jobs/{job_id}/delete", SUBMIT, "Delete a job", takes_form=True)
def delete(services: ServicesDep, job_id: JobId, include_pinned: Annotated[bool, Form()] = False) -> Response:
    delete_job(services, job_id, include_pinned)
    return see_other("/jobs")


def _intervals(results: JobResults | None) -> dict[str, list[Interval]]:
    """Metric -> its interval under each condition."""
    return intervals(results.conditions) if results is not None else {}
