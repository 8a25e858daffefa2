"""Analyses: the list, one analysis, and the form that starts one."""

import json
from typing import Annotated, Any

from fastapi import Form, Query, Request
from starlette.responses import HTMLResponse, Response

from actograph.contract import hooks
from actograph.contract.errors import ActographError
from actograph.contract.resources import Event, JobResults, JobStatus
from actograph.contract.specs import ANALYSIS_KINDS
from api.dependencies import After, JobId, Services, ServicesDep
from api.pages.analyses import charts
from api.pages.analyses.form import LABEL_KINDS, POSITION_KINDS, VECTOR_KINDS, AnalysisForm, spec_of
from api.pages.analyses.results_view import view
from api.pages.rendering import render, see_other
from api.routes.jobs import estimate_job, get_job, get_job_results, submit_job
from api.routing import READ, SUBMIT, Routes
from api.security.auth import Caller
from storage.index import events
from storage.index.pages import Order, PageOptions
from storage.jobs import jobs
from storage.queue import job_view

router = Routes(include_in_schema=False)

PAGE = 50
EVENTS = 100


@router.add("GET", "/analyses", READ, "Analyses", response_class=HTMLResponse)
def show_analyses(
    request: Request,
    services: ServicesDep,
    *,
    status: Annotated[str, Query(max_length=32)] = "",
    kind: Annotated[str, Query(max_length=32)] = "",
    after: After = None,
    order: Order = "desc",
) -> Response:
    wanted = JobStatus(status) if status in list(JobStatus) else None
    kinds = (kind,) if kind in ANALYSIS_KINDS else ANALYSIS_KINDS
    page = PageOptions(limit=PAGE, order=order, after=after or None)
    with services.database.read() as session:
        rows, has_more = jobs.find(session, status=wanted, kinds=kinds, **page)
        found = [job_view.resource(session, row, etas={}) for row in rows]
    values = {
        "analyses": found,
        "has_more": has_more,
        "last_id": found[-1].id if found else None,
        "filters": {"status": status, "kind": kind, "order": order},
        "statuses": [one for one in JobStatus if one is not JobStatus.FINALIZING],
        "kinds": list(ANALYSIS_KINDS),
    }
    return render(request, "analyses.html", values)


@router.add("GET", "/analyses/new", SUBMIT, "Start an analysis", response_class=HTMLResponse)
def show_form(
    request: Request,
    services: ServicesDep,
    kind: Annotated[str, Query(max_length=32)] = "",
    job: Annotated[str, Query(max_length=4096, description="Ids of jobs, separated by commas.")] = "",
) -> Response:
    chosen = kind if kind in ANALYSIS_KINDS else ANALYSIS_KINDS[0]
    values = {
        "kind": chosen,
        "kinds": list(ANALYSIS_KINDS),
        "job": job,
        **_captured(services, job.partition(",")[0].strip()),
        "takes_label": chosen in LABEL_KINDS,
        "takes_vector": chosen in VECTOR_KINDS,
        "takes_positions": chosen in POSITION_KINDS,
    }
    return render(request, "analysis_form.html", values)


@router.add(
    "POST", "/analyses/estimate", SUBMIT, "Spec and size of an analysis", takes_form=True, lane="reads"
)
def show_estimate(
    request: Request, services: ServicesDep, by: Caller, form: Annotated[AnalysisForm, Form()]
) -> Response:
    """A part of the form's page: the JSON, the sessions to read or the error."""
    values: dict[str, Any] = {"spec": None, "estimate": None, "trouble": ""}
    try:
        values["spec"] = spec_of(form)
        values["estimate"] = estimate_job(services, json.dumps(values["spec"]).encode(), by)
    except ActographError as error:
        values["trouble"] = error.message
    return render(request, "parts/analysis_estimate.html", values)


@router.add("POST", "/analyses", SUBMIT, "Start an analysis", takes_form=True)
def submit(services: ServicesDep, by: Caller, form: Annotated[AnalysisForm, Form()]) -> Response:
    answer = submit_job(services, json.dumps(spec_of(form)).encode(), by)
    return see_other(f"/jobs/{json.loads(bytes(answer.body))['id']}")


@router.add("GET", "/analyses/{job_id}", READ, "One analysis", response_class=HTMLResponse)
def show_analysis(request: Request, services: ServicesDep, job_id: JobId) -> Response:
    job = get_job(services, job_id)
    if job.kind not in ANALYSIS_KINDS:
        return see_other(f"/jobs/{job_id}")
    with services.database.read() as session:
        log = events.latest(session, job_id, EVENTS)
    results: JobResults = get_job_results(services, job_id)
    values = {
        "job": job,
        "is_over": job.status.is_terminal(),
        "results": results,
        "view": None if results.analysis is None else view(results.analysis),
        "read": _sessions_read(log),
        "events": log,
        "chart": {"width": charts.WIDTH, "height": charts.HEIGHT, "left": charts.LEFT, "right": charts.RIGHT,
                  "top": charts.TOP, "bottom": charts.BOTTOM, "cell": charts.CELL, "names": charts.NAMES},
    }  # fmt: skip
    return render(request, "analysis.html", values)


def _sessions_read(log: list[Event]) -> tuple[int, int] | None:
    """Sessions that a running analysis has read, and all of them; None before the first report."""
    for event in log:
        if event.event == "analysis.progress":
            return int(event.data["sessions"]), int(event.data["of"])
    return None


def _captured(services: Services, job_id: str) -> dict[str, list[str]]:
    """Points and conditions of a job to choose from; none without a job."""
    found: dict[str, list[str]] = {"points": [], "conditions": []}
    if not job_id:
        return found
    with services.database.read() as session:
        row = jobs.get(session, job_id)
        found["points"] = list(dict.fromkeys(map(hooks.point_of, row.hooks or [])))
        found["conditions"] = [str(one["name"]) for one in row.spec.get("conditions") or []]
    return found
