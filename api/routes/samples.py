"""/v1/jobs/{job_id}/samples: what the model was given, what it said, and how that was scored."""

from typing import Annotated

from fastapi import APIRouter, Query

from actograph.contract.errors import NotFound
from actograph.contract.resources import ListPage, Sample, SampleStatus
from api.dependencies import After, ServicesDep, known_id
from api.problems.errors import documented
from storage import samples
from storage.index import pages
from storage.jobs import jobs

router = APIRouter(prefix="/v1/jobs/{job_id}/samples", tags=["jobs"])


@router.get(
    "",
    operation_id="list_job_samples",
    summary="Samples of a job, in the order in which they are run",
    response_model=ListPage[Sample],
    responses=documented(404, 422),
)
def list_job_samples(
    *,
    services: ServicesDep,
    job_id: str,
    status: Annotated[SampleStatus | None, Query()] = None,
    condition: Annotated[str | None, Query(max_length=64)] = None,
    limit: Annotated[int, Query(ge=1, le=1000, description="Most items to return.")] = 20,
    after: After = None,
    order: Annotated[pages.Order, Query()] = "asc",
) -> ListPage[Sample]:
    known_id(job_id, "job", "job")
    with services.database.read() as session:
        jobs.get(session, job_id)
        rows, has_more = samples.find(
            session, job_id, status=status, condition=condition, after=after, limit=limit, order=order
        )
        return pages.page(rows, has_more, samples.resource)


@router.get(
    "/{sample_id}",
    operation_id="get_job_sample",
    summary="One sample",
    response_model=Sample,
    responses=documented(404, 422),
)
def get_job_sample(services: ServicesDep, job_id: str, sample_id: str) -> Sample:
    known_id(job_id, "job", "job")
    known_id(sample_id, "smp", "sample")
    with services.database.read() as session:
        row = samples.get(session, sample_id)
        if row.job_id != job_id:
            raise NotFound(f"job {job_id} has no sample {sample_id}")
        return samples.resource(row)
