"""/v1/jobs: estimate, submit, list, cancel, retry, rescore and delete jobs."""

from typing import Annotated

from fastapi import Query
from sqlalchemy.orm import Session
from starlette.responses import JSONResponse

from actograph.contract.resources import Deleted, Estimate, Job, JobResults, JobStatus, ListPage
from actograph.contract.scorers import RescoreRequest
from actograph.contract.specs import job_spec_adapter
from api.auth import Caller
from api.dependencies import (
    IdempotencyKey,
    JobId,
    PageDep,
    Services,
    ServicesDep,
    request_key,
    require_priority,
)
from api.problems.validation import parse_body, parse_job_spec
from api.requests.request_body import JsonBody
from api.routing import READ, SUBMIT, Body, Routes
from api.submission import planning, submit
from storage.accounts import quotas
from storage.index import pages
from storage.jobs import control, job_deletion, jobs, request_keys, view
from storage.queue import job_view, routing
from storage.results import rescoring, summary
from storage.tables.models import JobRow

router = Routes(prefix="/v1", tags=["jobs"])

RETRY_AFTER_SECONDS = 1
ACCEPTED_HEADERS = {
    "Location": {"description": "URL of the job.", "schema": {"type": "string"}},
    "Retry-After": {
        "description": "Seconds until the next request makes sense.",
        "schema": {"type": "integer"},
    },
}
SPEC_EXAMPLES = {
    "evaluation with capture": {
        "kind": "evaluation",
        "model": "Qwen/Qwen3-0.6B",
        "task": "gsm8k",
        "dataset": {"file_id": "file_6f1ed002ab5595859014ebf0951522d9"},
        "limit": 1319,
        "sampling": {"temperature": 0.0, "max_tokens": 512},
        "capture": {"points": ["attn_in", "mlp_in"], "layers": [8, 12, 16]},
        "tags": ["night"],
    },
    "conditions on the same problems": {
        "kind": "evaluation",
        "model": "Qwen/Qwen3-0.6B",
        "dataset": {"path": "gsm8k/test.jsonl"},
        "conditions": [
            {"name": "baseline"},
            {"name": "ep02", "suffix": "This is very important to my career."},
            {"name": "calculator", "tools": "calculator"},
            {
                "name": "steered",
                "interventions": [
                    {
                        "hook": "resid_post.12",
                        "op": "add",
                        "vector_id": "vec_0f17c1b05243b6a08788fb444b6f4aa0",
                        "coefficient": 4.0,
                    }
                ],
            },
        ],
        "capture": {"points": ["resid_post"], "layers": "all"},
    },
    "capture from prompts": {
        "kind": "capture",
        "model": "Qwen/Qwen3-0.6B",
        "inputs": [
            {"prompt": "The capital of France is"},
            {"messages": [{"role": "user", "content": "Why is the sky blue?"}]},
        ],
        "sampling": {"max_tokens": 64, "temperature": 0.7, "seed": 1},
        "capture": {"hooks": ["resid_post.12", "logits"], "positions": "generated"},
    },
    "read texts, every layer": {
        "kind": "capture",
        "model": "Qwen/Qwen3-30B-A3B",
        "dataset": {"hub": "openai/gsm8k", "config": "main", "split": "train"},
        "text_field": "question",
        "capture": {
            "points": ["resid_post", "router_logits"],
            "layers": "all",
            "stats": True,
            "mode": "prefill",
        },
        "truncate": True,
    },
}
SPEC = Body(job_spec_adapter, SPEC_EXAMPLES, name="JobSpec", max_bytes=None)
SCORERS = Body(
    RescoreRequest, {"another scorer": {"scorers": ["numeric", {"name": "efficiency", "target_tokens": 128}]}}
)


@router.add("POST", "/estimate", READ, "Estimate a job without queueing it", body=SPEC, lane="reads")
def estimate_job(
    services: ServicesDep,
    body: JsonBody,
    by: Caller,
    prompt_tokens: Annotated[
        int | None, Query(ge=1, le=10_000_000, description="Prompt length; see docs/guides/estimate.md.")
    ] = None,
) -> Estimate:
    """Take a spec for POST /v1/jobs, with the same errors except those for lack of resources."""
    spec = parse_job_spec(body)
    require_priority(services, spec.priority)
    submission = submit.check(services, spec, by)
    return planning.plan(services, submission, prompt_tokens)


@router.add(
    "POST",
    "/jobs",
    SUBMIT,
    "Submit a job",
    errors=[409],
    body=SPEC,
    status_code=202,
    response_model=Job,
    responses={202: {"headers": ACCEPTED_HEADERS}, 200: {"model": Job, "description": "The job exists."}},
)
def submit_job(
    services: ServicesDep,
    body: JsonBody,
    by: Caller,
    idempotency_key: IdempotencyKey = None,
) -> JSONResponse:
    """Check a job and queue it.

    A repeated request with the same `Idempotency-Key` answers 200 with the job as it is now.
    """
    spec = parse_job_spec(body)
    require_priority(services, spec.priority)
    key = request_key(idempotency_key, spec)
    if key is not None:
        with services.database.read() as session:
            made = request_keys.made_with(session, JobRow, by, key)
            if made is not None:
                return _job_answer(200, _shown(services, session, made))
    submission = submit.check(services, spec, by)
    planning.admit(services, submission)
    ahead = submission.outlook
    row = submit.insert(services.database, submission, lambda _, row: row, key)
    # without the broker an idle worker finds the job
    services.broker.wake(row.model)
    reason = ahead.waiting_reason or job_view.in_spite_of(services.broker.trouble)
    return _job_answer(202, view.of_row(row, queue_position=ahead.place, waiting_reason=reason))


def _job_answer(status: int, job: Job) -> JSONResponse:
    headers = {"Location": f"/v1/jobs/{job.id}", "Retry-After": str(RETRY_AFTER_SECONDS)}
    return JSONResponse(job.model_dump(mode="json"), status, headers)


def _shown(services: Services, session: Session, row: JobRow) -> Job:
    limits = quotas.read(session, services.settings)
    return job_view.resource(session, row, limits, broker_trouble=services.broker.trouble)


@router.add("GET", "/jobs", READ, "List jobs")
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
        rows, has_more = jobs.find(session, id_prefix=id_prefix, status=status, kind=kind, tag=tag, **page)
        active = any(row.status in jobs.ACTIVE for row in rows)
        limits = quotas.read(session, services.settings)
        served = routing.served_models(session) if active else None
        return pages.page(
            rows,
            has_more,
            lambda row: job_view.resource(
                session, row, limits, broker_trouble=services.broker.trouble, served=served
            ),
        )


@router.add("GET", "/jobs/{job_id}", READ, "One job")
def get_job(services: ServicesDep, job_id: JobId) -> Job:
    with services.database.read() as session:
        return _shown(services, session, jobs.get(session, job_id))


@router.add("DELETE", "/jobs/{job_id}", SUBMIT, "Delete a job that has finished or not started", errors=[409])
def delete_job(
    services: ServicesDep,
    job_id: JobId,
    include_pinned: Annotated[bool, Query(description="Delete pinned sessions too.")] = False,
) -> Deleted:
    """Delete the job with its samples and sessions at once; files are removed in the background."""
    with services.database.write() as session:
        job_deletion.delete(session, job_id, include_pinned=include_pinned)
    return Deleted(id=job_id, object="job")


@router.add("POST", "/jobs/{job_id}/cancel", SUBMIT, "Cancel a job; finished samples are kept", errors=[409])
def cancel_job(services: ServicesDep, job_id: JobId) -> Job:
    """The worker stops between two tokens. Cancelling twice changes nothing."""
    with services.database.write() as session:
        return job_view.resource(session, jobs.cancel(session, job_id))


@router.add(
    "POST",
    "/jobs/{job_id}/retry",
    SUBMIT,
    "Run failed and cancelled samples again",
    errors=[409],
    status_code=202,
    response_model=Job,
    responses={202: {"headers": ACCEPTED_HEADERS}},
)
def retry_job(services: ServicesDep, job_id: JobId) -> JSONResponse:
    """Queue the failed and cancelled samples of a finished job again.

    Completed samples keep their results and sessions. The answer is 409 if the job has not finished or all
    samples completed.
    """
    with services.database.write() as session:
        row = control.retry(session, job_id)
        job = job_view.resource(session, row)
    services.broker.wake(row.model)
    return _job_answer(202, job)


@router.add("GET", "/jobs/{job_id}/results", READ, "Scores per condition, also while the job runs")
def get_job_results(services: ServicesDep, job_id: JobId) -> JobResults:
    with services.database.snapshot() as session:
        return summary.of_job(session, jobs.get(session, job_id))


@router.add(
    "POST",
    "/jobs/{job_id}/rescore",
    SUBMIT,
    "Score the completions of a finished evaluation again",
    errors=[409],
    body=SCORERS,
    lane="reads",
)
def rescore_job(services: ServicesDep, job_id: JobId, body: JsonBody) -> JobResults:
    """Change results and samples at once, then `correct` of the sessions by the first scorer.

    Scores of other scorers are kept. Doing it twice changes nothing.
    """
    rescoring.rescore(services.database, job_id, parse_body(RescoreRequest, body).scorers)
    return get_job_results(services, job_id)
