"""/v1/jobs: jobs, their samples, events and results."""

from typing import Annotated

from fastapi import APIRouter, Header, Query
from sqlalchemy.orm import Session
from starlette.responses import JSONResponse, Response, StreamingResponse

from actograph.contract.base import Deleted, ListPage
from actograph.contract.errors import NotFound
from actograph.contract.job_specs import JobSpec, ListedKind
from actograph.contract.operations import Estimate
from actograph.contract.resources import Job, JobResults, JobStatus, Sample, SampleStatus
from actograph.contract.tasks import RescoreRequest
from api import estimate, submit
from api.auth import READ, SUBMIT, Caller
from api.dependencies import (
    IdempotencyKey,
    JobId,
    PageDep,
    SampleId,
    Services,
    ServicesDep,
    paging,
    request_key,
    require_priority,
    slow,
)
from api.reading import sse
from api.reading.downloads import Responses, binary
from storage import samples
from storage.accounts import quotas
from storage.index import pages, tallies
from storage.index.pages import PageOptions
from storage.jobs import control, jobs, request_keys
from storage.jobs.jobs import JobFilter
from storage.queue import claim, view, workers
from storage.results import comparisons, rescoring, summary
from storage.results.export import folder, plan
from storage.results.export.sample import Detail
from storage.tables.models import JobRow

router = APIRouter(prefix="/v1", tags=["jobs"], dependencies=[READ])

MAX_EVENT_ID = 2**63 - 1
_ACCEPTED_HEADERS = {
    "Location": {"description": "URL of the job.", "schema": {"type": "string"}},
    "Retry-After": {"description": "Seconds to the next look.", "schema": {"type": "integer"}},
}
ACCEPTED: Responses = {202: {"headers": _ACCEPTED_HEADERS}}


@router.post("/estimate", summary="Estimate a job without queueing it")
@slow
def estimate_job(
    services: ServicesDep,
    spec: JobSpec,
    by: Caller,
    prompt_tokens: Annotated[
        int | None, Query(ge=1, le=10_000_000, description="Prompt length; see docs/guides/jobs.md.")
    ] = None,
) -> Estimate:
    """Take a spec for POST /v1/jobs, with the same errors except those for lack of resources."""
    require_priority(services, spec.priority)
    return estimate.plan(services, submit.check(services, spec, by), prompt_tokens)


@router.post(
    "/jobs",
    summary="Submit a job",
    dependencies=[SUBMIT],
    status_code=202,
    response_model=Job,
    responses=ACCEPTED | {200: {"model": Job, "description": "The job exists."}},
)
def submit_job(
    services: ServicesDep, spec: JobSpec, by: Caller, idempotency_key: IdempotencyKey = None
) -> JSONResponse:
    """Check a job and queue it.

    A repeated request with the same `Idempotency-Key` answers 200 with the job as it is now.
    """
    require_priority(services, spec.priority)
    key = request_key(idempotency_key, spec)
    if key is not None:
        with services.database.read() as session:
            made = request_keys.made_with(session, JobRow, by, key)
            if made is not None:
                return _job_answer(200, _shown(services, session, made))
    row = submit.submit(services, spec, by, key=key)
    with services.database.read() as session:
        return _job_answer(202, _shown(services, session, jobs.get(session, row.id)))


def _job_answer(status: int, job: Job) -> JSONResponse:
    headers = {"Location": f"/v1/jobs/{job.id}", "Retry-After": "1"}
    return JSONResponse(job.model_dump(mode="json"), status, headers)


def _shown(services: Services, session: Session, row: JobRow) -> Job:
    limits = quotas.read(session, services.settings)
    return view.job(session, row, limits, broker_trouble=services.broker.trouble)


@router.get("/jobs", summary="List jobs")
def list_jobs(
    services: ServicesDep,
    page: PageDep,
    *,
    id_prefix: Annotated[str | None, Query(pattern="^job_[0-9a-f]{1,32}$")] = None,
    status: JobStatus | None = None,
    kind: ListedKind | None = None,
    tag: Annotated[str | None, Query(max_length=64)] = None,
    model: Annotated[str | None, Query(max_length=1024)] = None,
    text: Annotated[str | None, Query(max_length=256, description="Part of the id or the spec.")] = None,
) -> ListPage[Job]:
    wanted = JobFilter(id_prefix=id_prefix, status=status, kind=kind, tag=tag, model=model, text=text)
    with services.database.read() as session:
        rows, has_more = jobs.find(session, wanted, **page)
        limits, trouble = quotas.read(session, services.settings), services.broker.trouble
        served, places = workers.served_models(session), claim.positions(session, *rows)
        progress = tallies.progress(session, *rows)

        def shown(row: JobRow) -> Job:
            return view.job(
                session,
                row,
                limits,
                broker_trouble=trouble,
                served=served,
                positions=places,
                progress=progress,
            )

        return pages.page(rows, has_more, shown)


@router.get("/jobs/{job_id}", summary="One job")
def get_job(services: ServicesDep, job_id: JobId) -> Job:
    with services.database.read() as session:
        return _shown(services, session, jobs.get(session, job_id))


@router.delete(
    "/jobs/{job_id}", summary="Delete a job that has finished or not started", dependencies=[SUBMIT]
)
def delete_job(
    services: ServicesDep,
    job_id: JobId,
    include_pinned: Annotated[bool, Query(description="Delete pinned sessions too.")] = False,
) -> Deleted:
    """Delete the job with its samples and sessions at once; files are removed in the background."""
    with services.database.write() as session:
        control.delete(session, job_id, include_pinned=include_pinned)
    return Deleted(id=job_id, object="job")


@router.post(
    "/jobs/{job_id}/cancel", summary="Cancel a job; finished samples are kept", dependencies=[SUBMIT]
)
def cancel_job(services: ServicesDep, job_id: JobId) -> Job:
    """The worker stops between two tokens. Cancelling twice changes nothing."""
    with services.database.write() as session:
        return view.job(session, jobs.cancel(session, job_id))


@router.post(
    "/jobs/{job_id}/retry",
    summary="Run failed and cancelled samples again",
    dependencies=[SUBMIT],
    status_code=202,
    response_model=Job,
    responses=ACCEPTED,
)
def retry_job(services: ServicesDep, job_id: JobId) -> JSONResponse:
    """Queue the failed and cancelled samples of a finished job again.

    Completed samples keep their results and sessions. The answer is 409 if the job has not finished or all
    samples completed.
    """
    with services.database.write() as session:
        row = control.retry(session, job_id)
        job = view.job(session, row)
    services.broker.wake(row.model)
    return _job_answer(202, job)


@router.get("/jobs/{job_id}/results", summary="Scores per condition, also while the job runs")
def get_job_results(
    services: ServicesDep,
    job_id: JobId,
    fires_above: Annotated[
        float, Query(allow_inf_nan=False, description="A readout fires in samples with a value above it.")
    ] = 0.0,
) -> JobResults:
    with services.database.snapshot() as session:
        return summary.of_job(session, jobs.get(session, job_id), fires_above=fires_above)


@router.post(
    "/jobs/{job_id}/rescore",
    summary="Score the completions of a finished evaluation again",
    dependencies=[SUBMIT],
)
@slow
def rescore_job(services: ServicesDep, job_id: JobId, wanted: RescoreRequest) -> JobResults:
    """Change results and samples at once, then `correct` of the sessions by the first scorer.

    Scores of other scorers are kept. Doing it twice changes nothing.
    """
    rescoring.rescore(services.database, job_id, wanted.scorers, services.scorers)
    return get_job_results(services, job_id)


@router.get("/jobs/{job_id}/samples", summary="Samples of a job, in running order")
def list_job_samples(
    *,
    services: ServicesDep,
    job_id: JobId,
    page: Annotated[PageOptions, paging(most=1000, order="asc")],
    status: SampleStatus | None = None,
    condition: Annotated[str | None, Query(max_length=64)] = None,
) -> ListPage[Sample]:
    with services.database.read() as session:
        job = jobs.get(session, job_id)
        if condition is not None and (names := [one["name"] for one in job.spec.get("conditions") or []]):
            comparisons.require_condition(names, condition, "condition")
        rows, has_more = samples.find(session, job_id, status=status, condition=condition, **page)
        return pages.page(rows, has_more, samples.resource)


@router.get("/jobs/{job_id}/samples/{sample_id}", summary="One sample")
def get_job_sample(services: ServicesDep, job_id: JobId, sample_id: SampleId) -> Sample:
    with services.database.read() as session:
        row = samples.get(session, sample_id)
        if row.job_id != job_id:
            raise NotFound(f"job {job_id} has no sample {sample_id}")
        return samples.resource(row)


@router.get(
    "/jobs/{job_id}/events",
    summary="Follow a job (Server-Sent Events)",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "Messages with `id`, `event` and `data` (an Event), to the job's end. In a log "
            "that is read later, the memory of a worker's run (`run.ended`) may follow it.",
            "content": sse.DOCUMENTED,
        },
        204: {"description": "The job has ended and the client has its last event: do not ask again."},
    },
)
def follow_job(
    services: ServicesDep,
    job_id: JobId,
    after: Annotated[
        int, Query(ge=0, le=MAX_EVENT_ID, description="Id of the last event received; 0 for all.")
    ] = 0,
    last_event_id: Annotated[
        int | None, Header(ge=0, le=MAX_EVENT_ID, description="The same; sent by browsers.")
    ] = None,
) -> Response:
    """The log from its start, or after an event, to the end of the job."""
    start = after if last_event_id is None else last_event_id
    get_job(services, job_id)
    first = sse.look(services, job_id, start)
    if first.is_over and not first.events:
        return Response(status_code=204)
    stream = sse.follow(services, job_id, start, first)
    return StreamingResponse(stream, headers=sse.HEADERS, media_type="text/event-stream")


@router.get(
    "/jobs/{job_id}/export",
    summary="The results folder as tar.gz, also while the job runs",
    response_class=Response,
    responses=binary("A tar.gz with one folder, named by the job's id.", "application/gzip"),
)
@slow
def export_job(
    services: ServicesDep,
    job_id: JobId,
    activations: Annotated[
        Detail, Query(description="meta: shapes and sizes; sampled: the first 50 features of every row.")
    ] = "meta",
) -> Response:
    """Results of finished samples; `complete` in `summary.json` is true if all have finished."""
    wanted = plan.prepare(services.database, job_id, activations)
    headers = {"Content-Disposition": f"attachment; filename={job_id}.tar.gz"}
    pieces = folder.stream(wanted, services.database, services.store)
    return StreamingResponse(pieces, headers=headers, media_type="application/gzip")
