"""/v1/store: clearing the artifact store and comparing it with the index, a page at a time."""

from typing import Annotated

from fastapi import APIRouter, Query

from actograph.contract.resources import StoreGc, StoreVerification
from api.dependencies import ServicesDep
from api.problems.errors import documented
from storage.upkeep import store_gc, store_verify

router = APIRouter(prefix="/v1/store", tags=["store"])

After = Annotated[str | None, Query(max_length=128, description="`next` of the page before.")]
Seconds = Annotated[float, Query(gt=0, le=60, description="About how long one page may take.")]


@router.post(
    "/gc",
    operation_id="collect_garbage",
    summary="Remove what has expired and what nothing refers to",
    response_model=StoreGc,
    responses=documented(422),
)
def collect_garbage(
    services: ServicesDep,
    dry_run: Annotated[bool, Query(description="Only say what would go.")] = False,
    after: After = None,
    seconds: Seconds = 10.0,
) -> StoreGc:
    """One page; ask again with `after` until `next` is null."""
    return store_gc.collect(services.database, services.store, dry_run=dry_run, after=after, seconds=seconds)


@router.post(
    "/verify",
    operation_id="verify_store",
    summary="Compare what is stored with the index, by checksum",
    response_model=StoreVerification,
    responses=documented(422),
)
def verify_store(
    services: ServicesDep,
    after: After = None,
    sample: Annotated[float, Query(gt=0, le=1, description="Share of what is stored to read.")] = 1.0,
    seed: Annotated[int, Query(ge=0, lt=2**63, description="Which share.")] = 0,
    seconds: Seconds = 10.0,
) -> StoreVerification:
    """One page; ask again with `after`, and the same sample and seed, until `next` is null."""
    return store_verify.verify(
        services.database, services.store, after=after, sample=sample, seed=seed, seconds=seconds
    )
