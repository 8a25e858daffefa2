"""Changes of many sessions or jobs: a confirmation that counts them, then the change."""

import json
from typing import Annotated, Any

from fastapi import Form, Request
from pydantic import Field
from starlette.responses import Response

from actograph.contract.errors import Conflict, InvalidRequest, NotFound
from actograph.contract.resources import JobStatus
from api.dependencies import Services, ServicesDep, known_id
from api.pages.rendering import address, render, see_other
from api.pages.sessions import SearchQuery
from api.routes import sessions as session_routes
from api.routes.jobs import cancel_job, retry_job
from api.routing import SUBMIT, Routes
from api.security.auth import Caller
from storage.index.clock import now
from storage.jobs import jobs
from storage.sessions.sessions import SessionFilter
from storage.tables.models import JobRow

router = Routes(include_in_schema=False)

#: jobs that one form changes
MOST_JOBS = 1000
_PINS = {"pin": True, "unpin": False}
_SESSION_ACTIONS = (*_PINS, "tag", "delete")
_JOB_ACTIONS = ("cancel", "retry")


class SessionsForm(SearchQuery):
    """Chosen sessions, or all that match the search, and the change."""

    action: str = Field("", max_length=16)
    #: `chosen` or `all`
    scope: str = Field("chosen", max_length=8)
    ids: list[str] = Field(default_factory=list, max_length=100)
    tags: str = Field("", max_length=8192)
    #: sessions created from then on stay as they are; empty until the form was confirmed
    before: float | None = Field(None, allow_inf_nan=False)


class JobsForm(SearchQuery):
    """Chosen jobs, or all that match the filters, and the change."""

    action: str = Field("", max_length=16)
    scope: str = Field("chosen", max_length=8)
    ids: list[str] = Field(default_factory=list, max_length=100)
    status: str = Field("", max_length=32)
    kind: str = Field("", max_length=32)
    #: confirmed ids, separated by commas
    confirmed: str = Field("", max_length=64 * MOST_JOBS)


@router.add("POST", "/sessions/change", SUBMIT, "Change many sessions", takes_form=True)
def change_sessions(
    request: Request, services: ServicesDep, form: Annotated[SessionsForm, Form()]
) -> Response:
    """Ask first. The confirmed form changes the sessions that existed when it was shown."""
    if form.action not in _SESSION_ACTIONS:
        raise InvalidRequest("choose a change of the sessions", param="action")
    is_confirmed = form.before is not None
    if form.before is None:
        with services.database.read() as session:
            form.before = now(session)
    wanted = _sessions(services, form)
    if form.action == "delete":
        removal = session_routes.delete_sessions(services, wanted, not is_confirmed, everything=True)
        count, size, pinned = removal.sessions, removal.bytes, removal.pinned
    else:
        body = json.dumps(_change(form)).encode()
        change = session_routes.update_sessions(services, wanted, body, not is_confirmed, everything=True)
        count, size, pinned = change.sessions, None, 0
    filters = form.model_dump(include=set(SearchQuery.model_fields))
    if is_confirmed:
        return see_other(address("/sessions", **filters))
    values = {
        "form": form,
        "fields": {**filters, "scope": form.scope, "tags": form.tags, "before": repr(form.before)},
        "ids": form.ids if form.scope != "all" else [],
        "count": count,
        "size": size,
        "pinned": pinned,
        "back": address("/sessions", **filters),
    }
    return render(request, "confirm_sessions.html", values)


@router.add("POST", "/jobs/change", SUBMIT, "Change many jobs", takes_form=True)
def change_jobs(
    request: Request, services: ServicesDep, by: Caller, form: Annotated[JobsForm, Form()]
) -> Response:
    """Ask first. The confirmed form changes those jobs alone that were shown."""
    if form.action not in _JOB_ACTIONS:
        raise InvalidRequest("choose a change of the jobs", param="action")
    back = address("/jobs", status=form.status, kind=form.kind, tag=form.tag)
    if form.confirmed:
        for job_id in form.confirmed.split(","):
            _change_job(services, form.action, known_id(job_id, "job", "job"), by)
        return see_other(back)
    found = _jobs(services, form)
    values = {
        "form": form,
        "fields": {"status": form.status, "kind": form.kind, "tag": form.tag},
        "ids": [job_id for job_id, row_fits in found if row_fits],
        "others": sum(not row_fits for _, row_fits in found),
        "most": MOST_JOBS,
        "back": back,
    }
    return render(request, "confirm_jobs.html", values)


def _sessions(services: Services, form: SessionsForm) -> SessionFilter:
    if form.scope == "all":
        return form.wanted(services, created_before=form.before)
    if not form.ids:
        raise InvalidRequest("choose at least one session", param="ids")
    return SessionFilter(ids=frozenset(known_id(one, "ses", "session") for one in form.ids))


def _change(form: SessionsForm) -> dict[str, Any]:
    if form.action in _PINS:
        return {"pinned": _PINS[form.action]}
    tags = [one.strip() for one in form.tags.split(",") if one.strip()]
    return {"tags": list(dict.fromkeys(tags))}


def _jobs(services: Services, form: JobsForm) -> list[tuple[str, bool]]:
    """Ids of the jobs, the first `MOST_JOBS`, and whether the change applies to each."""
    with services.database.read() as session:
        if form.scope == "all":
            status = JobStatus(form.status) if form.status in list(JobStatus) else None
            rows, _ = jobs.find(
                session, status=status, kind=form.kind or None, tag=form.tag or None, limit=MOST_JOBS
            )
        elif form.ids:
            rows = [jobs.get(session, known_id(one, "job", "job")) for one in form.ids]
        else:
            raise InvalidRequest("choose at least one job", param="ids")
        return [(row.id, _fits(row, form.action)) for row in rows]


def _fits(row: JobRow, action: str) -> bool:
    is_over = JobStatus(row.status).is_terminal()
    if action == "retry":
        return is_over and row.completed < (row.total or 0)
    return not is_over and row.status != JobStatus.CANCELLING


def _change_job(services: Services, action: str, job_id: str, by: Caller) -> None:
    """A job that ended or was deleted since the question stays as it is."""
    try:
        if action == "cancel":
            cancel_job(services, job_id)
        else:
            retry_job(services, job_id, by)
    except (Conflict, NotFound):
        return
