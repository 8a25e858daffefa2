"""/metrics: how the service does, for Prometheus."""

import os

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.responses import PlainTextResponse, Response

from api import metrics
from api.dependencies import AllServicesDep

router = APIRouter(tags=["health"])

#: prometheus_client's own name for the folder that several processes share
FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"


@router.get(
    "/metrics",
    operation_id="metrics",
    summary="Metrics in Prometheus' text format",
    response_class=PlainTextResponse,
)
def get_metrics(services: AllServicesDep) -> Response:
    """docs/monitoring.md lists them. They are sums over every owner, and name none."""
    found = metrics.render(services, os.environ.get(FOLDER_VARIABLE))
    return Response(found, media_type=CONTENT_TYPE_PLAIN_0_0_4)
