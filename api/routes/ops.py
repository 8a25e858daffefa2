"""/v1/capabilities and /v1/store: features of the service, and care for its artifact store."""

from typing import Annotated

from fastapi import APIRouter, Query, Request

from actograph import __version__
from actograph.contract.operations import (
    Capabilities,
    Features,
    Limits,
    StoreGc,
    StoreVerification,
    of_contract,
)
from api.auth import ADMIN, READ
from api.bodies import slow
from api.dependencies import ServicesDep
from api.routes.models import list_models
from api.submit import MAX_SAMPLES
from storage.accounts import api_keys, quotas
from storage.upkeep import store_gc, store_verify

router = APIRouter(prefix="/v1")

#: paths of OpenAI's API
OPENAI_PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/files", "/v1/batches")

After = Annotated[str | None, Query(max_length=128, description="`next` of the previous page.")]
Seconds = Annotated[float, Query(gt=0, le=60, description="Approximate time limit of one page.")]


@router.get(
    "/capabilities", tags=["models"], dependencies=[READ], summary="Features and limits of the service"
)
def get_capabilities(services: ServicesDep, request: Request) -> Capabilities:
    """Job kinds, hook points, tasks, scorers, limits, served models and features of the service."""
    paths, settings = request.app.openapi()["paths"], services.settings
    with services.database.read() as session:
        needs_key = bool(settings.api_keys) or api_keys.exist(session)
    return Capabilities(
        version=__version__,
        models=list_models(services).data,
        limits=Limits(
            max_upload_bytes=settings.max_upload_bytes,
            max_body_bytes=settings.max_body_bytes,
            store_quota_bytes=settings.store_quota_bytes,
            owner_quota_bytes=quotas.owner_limit(settings),
            samples_per_job=MAX_SAMPLES,
        ),
        features=Features(
            database="sqlite" if services.database.is_sqlite else "postgres",
            artifacts="s3" if settings.effective_artifact_url.startswith("s3://") else "files",
            authentication=needs_key,
            model_switching=settings.model_switching,
        ),
        openai_endpoints=[path for path in OPENAI_PATHS if path in paths],
        endpoints=[f"{method.upper()} {path}" for path, methods in paths.items() for method in methods],
        **of_contract(),
    )


@router.post(
    "/store/gc", tags=["store"], dependencies=[ADMIN], summary="Remove expired and unreferenced data"
)
def collect_garbage(
    services: ServicesDep,
    dry_run: Annotated[bool, Query(description="Only list what would be removed.")] = False,
    after: After = None,
    seconds: Seconds = 10.0,
) -> StoreGc:
    """Remove one page; repeat with `after` until `next` is null."""
    return store_gc.collect(services.database, services.store, dry_run=dry_run, after=after, seconds=seconds)


@router.post(
    "/store/verify",
    tags=["store"],
    dependencies=[ADMIN],
    summary="Verify stored files against the index, by checksum",
)
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
