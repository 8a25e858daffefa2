"""/v1/estimate: what a job would take, before it is queued."""

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Depends, Query

from actograph.contract.resources import Estimate
from api.dependencies import ServicesDep, require_priority
from api.problems.errors import documented
from api.problems.validation import parse_job_spec
from api.requests.request_body import body_of, json_body
from api.security.auth import caller
from api.submission import planning, submissions

router = APIRouter(prefix="/v1", tags=["jobs"])


@router.post(
    "/estimate",
    operation_id="estimate_job",
    summary="Will it fit? Nothing is queued",
    response_model=Estimate,
    responses=documented(413, 415, 422),
    openapi_extra=body_of("JobSpec"),
)
def estimate_job(
    services: ServicesDep,
    body: Annotated[bytes, Depends(json_body)],
    by: Annotated[str, Depends(caller)],
    prompt_tokens: Annotated[
        int | None,
        Query(
            ge=1,
            le=10_000_000,
            description="Length that every prompt is taken to have; see docs/estimate.md.",
        ),
    ] = None,
) -> Estimate:
    """Takes what POST /v1/jobs takes, and refuses what that refuses but for want of resources."""
    spec = parse_job_spec(body)
    require_priority(services, spec.priority)
    submission = replace(submissions.check(services, spec), owner=by)
    return planning.plan(services, submission, prompt_tokens)
