"""/v1/jobs/{id}/comparison: conditions of a job on the same problems."""

from typing import Annotated

from fastapi import APIRouter, Query

from actograph.contract.base import HookName
from actograph.contract.resources import JobComparison, TextComparison
from api.auth import READ
from api.dependencies import JobId, ServicesDep, slow
from evals.statistics.paired import DEFAULT_LEVEL, DEFAULT_RESAMPLES
from storage.jobs import jobs
from storage.results import comparisons, text_comparison

router = APIRouter(prefix="/v1/jobs", tags=["comparisons"], dependencies=[READ])


@router.get(
    "/{job_id}/comparison", summary="Every condition against a baseline, per problem; also while the job runs"
)
@slow
def get_job_comparison(
    services: ServicesDep,
    job_id: JobId,
    *,
    baseline: Annotated[
        str | None, Query(max_length=64, description="A condition; default: the first one.")
    ] = None,
    level: Annotated[float, Query(gt=0, lt=1, description="Coverage of the intervals.")] = DEFAULT_LEVEL,
    resamples: Annotated[int, Query(ge=100, le=10_000)] = DEFAULT_RESAMPLES,
    seed: Annotated[int, Query(ge=0, le=2**31 - 1, description="Seed of the bootstrap.")] = 0,
) -> JobComparison:
    """Accuracy, McNemar's exact test, bootstrap intervals over problems, and lengths in tokens."""
    bootstrap = comparisons.Bootstrap(level=level, resamples=resamples, seed=seed)
    with services.database.read() as session:
        conditions = comparisons.read(session, jobs.get(session, job_id), baseline=baseline)
    return conditions.compare(bootstrap)


@router.get(
    "/{job_id}/comparison/texts", summary="Texts of all conditions side by side; also while the job runs"
)
@slow
def get_job_texts(
    services: ServicesDep,
    job_id: JobId,
    *,
    baseline: Annotated[
        str | None, Query(max_length=64, description="A condition; default: the first one.")
    ] = None,
    hooks: Annotated[
        list[HookName], Query(description="Hooks of the shifts, or points for all layers; default: all.")
    ] = [],  # noqa: B006 (FastAPI copies it)
    limit: Annotated[int, Query(ge=1, le=100, description="Problems.")] = 20,
    offset: Annotated[int, Query(ge=0, le=2**31 - 1, description="Problems to leave out first.")] = 0,
) -> TextComparison:
    """Texts, the first place that differs from the baseline's, and the shift of rows there."""
    with services.database.read() as session:
        row = jobs.get(session, job_id)
        texts = text_comparison.read(
            session, row, baseline=baseline, wanted=hooks, limit=limit, offset=offset
        )
    return texts.compare(services.store)
