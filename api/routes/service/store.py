"""/v1/store: clean up the artifact store and verify it against the index, one page per request."""

from typing import Annotated

from fastapi import APIRouter, Query

from actograph.contract.resources import StoreGc, StoreVerification
from api.auth import ADMIN
from api.bodies import JsonRoute, slow
from api.dependencies import ServicesDep
from storage.upkeep import store_gc, store_verify

router = APIRouter(prefix="/v1/store", tags=["store"], dependencies=[ADMIN], route_class=JsonRoute)

After = Annotated[str | None, Query(max_length=128, description="`next` of the previous page.")]
Seconds = Annotated[float, Query(gt=0, le=60, description="Approximate time limit of one page.")]


@router.post("/gc", summary="Remove expired and unreferenced data")
def collect_garbage(
    services: ServicesDep,
    dry_run: Annotated[bool, Query(description="Only list what would be removed.")] = False,
    after: After = None,
    seconds: Seconds = 10.0,
) -> StoreGc:
    """Remove one page; repeat with `after` until `next` is null."""
    return store_gc.collect(services.database, services.store, dry_run=dry_run, after=after, seconds=seconds)


@router.post("/verify", summary="Verify stored files against the index, by checksum")
@slow
def verify_store(
    services: ServicesDep,
    after: After = None,
    sample: Annotated[float, Query(gt=0, le=1, description="Share of stored files to read.")] = 1.0,
    seed: Annotated[int, Query(ge=0, lt=2**63, description="Seed that selects the share.")] = 0,
    seconds: Seconds = 10.0,
) -> StoreVerification:
    """Verify one page; repeat with `after`, and the same sample and seed, until `next` is null."""
    return store_verify.verify(
        services.database, services.store, after=after, sample=sample, seed=seed, seconds=seconds
    )
