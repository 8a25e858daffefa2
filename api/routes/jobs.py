"""/v1/jobs: submit, list, follow, cancel, retry, delete."""

from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from sqlalchemy.orm import Session
from starlette.responses import JSONResponse

from actograph.contract import resources
from actograph.contract.resources import Deleted, Job, JobResults, JobStatus, ListPage
from api.dependencies import PageDep, ServicesDep, known_id, require_priority
from api.problems.errors import documented
from api.problems.validation import parse_job_spec
from api.requests.answered_once import IdempotencyKey, Keep, answered_once
from api.requests.request_body import body_of, json_body
from api.security.auth import caller
from api.submission import job_insertion, planning, submissions
from storage.accounts import quotas
from storage.index import pages
from storage.jobs import job_control, job_deletion, job_shape, jobs
from storage.queue import forecast, job_queue, job_view, routing
from storage.results import job_results
from storage.submission.idempotency import StoredAnswer
from storage.tables.models import JobRow

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])

RETRY_AFTER_SECONDS = 1
ACCEPTED_HEADERS = {
    "Location": {"description": "URL of the job.", "schema": {"type": "string"}},
    "Retry-After": {"description": "Seconds until it is worth asking.", "schema": {"type": "integer"}},
}


@router.post(
    "",
    status_code=202,
    operation_id="submit_job",
    summary="Submit a job",
    response_model=Job,
    responses={202: {"headers": ACCEPTED_HEADERS}, **documented(409, 413, 415, 422)},
    openapi_extra=body_of("JobSpec"),
)
def submit_job(
    services: ServicesDep,
    body: Annotated[bytes, Depends(json_body)],
    by: Annotated[str, Depends(caller)],
    idempotency_key: IdempotencyKey = None,
) -> JSONResponse:
    """Check a job and put it into the queue.

    With an `Idempotency-Key` a repeated request gets the first one's answer.
    """
    spec = parse_job_spec(body)
    require_priority(services, spec.priority)

    def submit(keep: Keep) -> StoredAnswer:
        submission = replace(submissions.check(services, spec), owner=by)
        planning.admit(services, submission)
        ahead = submission.outlook

        def finish(session: Session, row: JobRow) -> tuple[JobRow, StoredAnswer]:
            reason = ahead.waiting_reason or job_view.in_spite_of(services.broker.trouble)
            shown = job_shape.of_row(row, queue_position=ahead.place, waiting_reason=reason)
            answer = StoredAnswer(202, shown.model_dump(mode="json"))
            keep(session, answer)
            return row, answer

        row, answer = job_insertion.insert(services.database, submission, finish, renew=keep.renew)
        # Only now can a worker see the job. Without the broker, an idle worker finds it.
        services.broker.wake(row.id, row.priority, ahead.queue)
        return answer

    return _accepted(answered_once(services, by, idempotency_key, b"POST /v1/jobs\n" + body, submit))


def _shown_at_once(session: Session, row: JobRow) -> dict[str, Any]:
    """The job without a forecast, which takes longer than a transaction that writes should."""
    return job_view.resource(session, row, etas={}).model_dump(mode="json")


def _accepted(answer: StoredAnswer) -> JSONResponse:
    headers = {"Location": f"/v1/jobs/{answer.response['id']}", "Retry-After": str(RETRY_AFTER_SECONDS)}
    return JSONResponse(answer.response, answer.status_code, headers)


@router.get(
    "", operation_id="list_jobs", summary="List jobs", response_model=ListPage[Job], responses=documented(422)
)
def list_jobs(
    services: ServicesDep,
    page: PageDep,
    *,
    id_prefix: Annotated[str | None, Query(pattern="^job_[0-9a-f]{1,32}$")] = None,
    status: Annotated[JobStatus | None, Query()] = None,
    kind: Annotated[str | None, Query(max_length=32)] = None,
    tag: Annotated[str | None, Query(max_length=64)] = None,
) -> ListPage[Job]:
    with services.database.read() as session:
        rows, has_more = jobs.find(
            session,
            id_prefix=id_prefix,
            status=status,
            kind=kind,
            tag=tag,
            after=page.after,
            limit=page.limit,
            order=page.order,
        )
        active = [row.id for row in rows if row.status in jobs.ACTIVE]
        positions = job_queue.places(session, active)
        limits = quotas.read(session, services.settings)
        etas = forecast.etas(session) if active else {}
        fleet = routing.fleet(session) if active else None
        return pages.page(
            rows,
            has_more,
            lambda row: job_view.resource(
                session, row, positions, limits, etas, broker_trouble=services.broker.trouble, fleet=fleet
            ),
        )


@router.get(
    "/{job_id}",
    operation_id="get_job",
    summary="One job",
    response_model=Job,
    responses=documented(404, 422),
)
def get_job(services: ServicesDep, job_id: str) -> Job:
    with services.database.read() as session:
        row = jobs.get(session, known_id(job_id, "job", "job"))
        return job_view.resource(
            session,
            row,
            quotas=quotas.read(session, services.settings),
            broker_trouble=services.broker.trouble,
        )


@router.delete(
    "/{job_id}",
    operation_id="delete_job",
    summary="Delete a job that has ended or not begun",
    response_model=Deleted,
    responses=documented(404, 409, 422),
)
def delete_job(
    services: ServicesDep,
    job_id: str,
    include_pinned: Annotated[bool, Query(description="Even where some of its sessions are pinned.")] = False,
) -> Deleted:
    """The job, its samples and its sessions are gone at once; their files are removed in the background."""
    known_id(job_id, "job", "job")
    with services.database.write() as session:
        job_deletion.delete(session, job_id, include_pinned=include_pinned)
    return Deleted(id=job_id, object="job")


@router.post(
    "/{job_id}/cancel",
    operation_id="cancel_job",
    summary="End a job; what finished is kept",
    response_model=Job,
    responses=documented(404, 409, 422),
)
def cancel_job(services: ServicesDep, job_id: str) -> Job:
    """A worker that runs the job sees this between two tokens. Cancelling twice changes nothing."""
    known_id(job_id, "job", "job")
    with services.database.write() as session:
        return job_view.resource(session, jobs.cancel(session, job_id))


@router.post(
    "/{job_id}/retry",
    status_code=202,
    operation_id="retry_job",
    summary="Run what failed or was never run again",
    response_model=Job,
    responses={202: {"headers": ACCEPTED_HEADERS}, **documented(404, 409, 422)},
)
def retry_job(
    services: ServicesDep,
    job_id: str,
    by: Annotated[str, Depends(caller)],
    idempotency_key: IdempotencyKey = None,
) -> JSONResponse:
    """Of a job that has ended: its samples that failed or were cancelled begin anew.

    Completed samples keep their results and sessions. 409 where the job has not ended or every
    sample has completed.
    """
    known_id(job_id, "job", "job")

    def retry(keep: Keep) -> StoredAnswer:
        with services.database.write() as session:
            row = job_control.retry(session, job_id)
            answer = StoredAnswer(202, _shown_at_once(session, row))
            keep(session, answer)
        services.broker.wake(row.id, row.priority)
        return answer

    return _accepted(
        answered_once(services, by, idempotency_key, f"POST /v1/jobs/{job_id}/retry".encode(), retry)
    )


@router.get(
    "/{job_id}/results",
    operation_id="get_job_results",
    summary="Scores for each condition, also while the job runs",
    response_model=JobResults,
    responses=documented(404, 422),
)
def get_job_results(services: ServicesDep, job_id: str) -> resources.JobResults:
    known_id(job_id, "job", "job")
    return job_results.current(services.database, job_id)
