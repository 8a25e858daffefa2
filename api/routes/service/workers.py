"""/v1/workers: who runs the jobs, and how they are."""

from fastapi import APIRouter

from actograph.contract.resources import ListPage, Worker
from api.dependencies import ServicesDep
from storage.index import pages
from storage.queue import workers

router = APIRouter(prefix="/v1/workers", tags=["queue"])


@router.get(
    "", operation_id="list_workers", summary="Workers, the newest first", response_model=ListPage[Worker]
)
def list_workers(services: ServicesDep) -> ListPage[Worker]:
    """Workers that ended are listed for a day."""
    with services.database.read() as session:
        return pages.page(workers.find(session), False, workers.resource)
