"""/v1/capabilities: features and limits of the service."""

from fastapi import APIRouter, Request

from actograph import __version__
from actograph.contract.service.capabilities import Capabilities, Features, Limits, of_contract
from api.auth import READ
from api.bodies import JsonRoute
from api.dependencies import Services, ServicesDep
from api.routes.models import list_models
from api.submission.expand import MAX_SAMPLES
from storage.accounts import api_keys, quotas

router = APIRouter(tags=["models"], dependencies=[READ], route_class=JsonRoute)

#: paths of OpenAI's API
OPENAI_PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/files", "/v1/batches")


@router.get("/v1/capabilities", summary="Features and limits of the service")
def get_capabilities(services: ServicesDep, request: Request) -> Capabilities:
    """Job kinds, hook points, tasks, scorers, limits, served models and features of the service."""
    paths = request.app.openapi()["paths"]
    return Capabilities(
        version=__version__,
        models=list_models(services).data,
        limits=_limits(services),
        features=_features(services),
        openai_endpoints=[path for path in OPENAI_PATHS if path in paths],
        endpoints=[f"{method.upper()} {path}" for path, methods in paths.items() for method in methods],
        **of_contract(),
    )


def _limits(services: Services) -> Limits:
    settings = services.settings
    return Limits(
        max_upload_bytes=settings.max_upload_bytes,
        max_body_bytes=settings.max_body_bytes,
        store_quota_bytes=settings.store_quota_bytes,
        owner_quota_bytes=quotas.owner_limit(settings),
        samples_per_job=MAX_SAMPLES,
    )


def _features(services: Services) -> Features:
    settings = services.settings
    with services.database.read() as session:
        needs_key = bool(settings.api_keys) or api_keys.exist(session)
    return Features(
        database="sqlite" if services.database.is_sqlite else "postgres",
        artifacts="s3" if settings.effective_artifact_url.startswith("s3://") else "files",
        authentication=needs_key,
        model_switching=settings.model_switching,
    )
