"""/v1/jobs/{id}/rescore: judge a job's stored completions by other scorers, without a worker."""

from typing import Annotated

from fastapi import APIRouter, Depends

from actograph.contract.resources import JobResults
from actograph.contract.scorers import RescoreRequest
from api.dependencies import ServicesDep, known_id
from api.problems.errors import documented
from api.problems.validation import parse_body
from api.requests.request_body import body_of, json_body
from storage.results import job_results, rescoring

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])


@router.post(
    "/{job_id}/rescore",
    operation_id="rescore_job",
    summary="Score an ended evaluation's completions anew",
    response_model=JobResults,
    responses=documented(404, 409, 413, 415, 422),
    openapi_extra=body_of("RescoreRequest"),
)
def rescore_job(services: ServicesDep, job_id: str, body: Annotated[bytes, Depends(json_body)]) -> JobResults:
    """Results and samples change at once, then the sessions' `correct`, by the first scorer's verdict.

    Scores of other scorers are kept. Doing it twice changes nothing more.
    """
    known_id(job_id, "job", "job")
    wanted = parse_body(RescoreRequest, body)
    rescoring.rescore(services.database, job_id, wanted.scorers)
    return job_results.current(services.database, job_id)
