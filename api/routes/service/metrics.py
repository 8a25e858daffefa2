"""/metrics, for Prometheus."""

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.responses import PlainTextResponse, Response

from api import metrics
from api.auth import READ
from api.bodies import JsonRoute
from api.dependencies import AllServicesDep

router = APIRouter(tags=["health"], dependencies=[READ], route_class=JsonRoute)

EXAMPLE = (
    "# HELP actograph_jobs Jobs in the index.\n# TYPE actograph_jobs gauge\n"
    'actograph_jobs{status="queued"} 2.0\n'
)


@router.get(
    "/metrics",
    summary="Metrics in Prometheus' text format",
    name="metrics",
    response_class=PlainTextResponse,
    responses={200: {"content": {"text/plain": {"example": EXAMPLE}}}},
)
def get_metrics(services: AllServicesDep) -> Response:
    """All metrics of docs/operate/monitoring.md. They are sums over all owners and name none."""
    return Response(metrics.render(services), media_type=CONTENT_TYPE_PLAIN_0_0_4)
