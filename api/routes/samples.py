"""/v1/jobs/{job_id}/samples: prompt, completion and scores of each sample."""

from typing import Annotated

from fastapi import APIRouter, Query

from actograph.contract.errors import NotFound
from actograph.contract.resources import ListPage, Sample, SampleStatus
from api.auth import READ
from api.bodies import JsonRoute
from api.dependencies import After, JobId, SampleId, ServicesDep
from storage import samples
from storage.index import pages
from storage.jobs import jobs

router = APIRouter(
    prefix="/v1/jobs/{job_id}/samples", tags=["jobs"], dependencies=[READ], route_class=JsonRoute
)


@router.get("", summary="Samples of a job, in running order")
def list_job_samples(
    *,
    services: ServicesDep,
    job_id: JobId,
    status: Annotated[SampleStatus | None, Query()] = None,
    condition: Annotated[str | None, Query(max_length=64)] = None,
    limit: Annotated[int, Query(ge=1, le=1000, description="Most items to return.")] = 20,
    after: After = None,
    order: Annotated[pages.Order, Query()] = "asc",
) -> ListPage[Sample]:
    with services.database.read() as session:
        jobs.get(session, job_id)
        rows, has_more = samples.find(
            session, job_id, status=status, condition=condition, after=after, limit=limit, order=order
        )
        return pages.page(rows, has_more, samples.resource)


@router.get("/{sample_id}", summary="One sample")
def get_job_sample(services: ServicesDep, job_id: JobId, sample_id: SampleId) -> Sample:
    with services.database.read() as session:
        row = samples.get(session, sample_id)
        if row.job_id != job_id:
            raise NotFound(f"job {job_id} has no sample {sample_id}")
        return samples.resource(row)
