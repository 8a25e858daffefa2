"""/v1/batches, in OpenAI's form."""

from fastapi import APIRouter, BackgroundTasks
from sqlalchemy.orm import Session

from actograph.contract.base import ListPage
from actograph.contract.errors import InvalidRequest, NotFound, PayloadTooLarge
from actograph.contract.openai_answers import Batch, BatchRequest
from api.auth import READ, SUBMIT, Caller
from api.dependencies import BatchId, IdempotencyKey, PageDep, ServicesDep, request_key, require_priority
from api.openai.batches import advance
from storage.files import files
from storage.index import pages
from storage.jobs import batches, request_keys
from storage.tables.models import BatchRow

router = APIRouter(prefix="/v1/batches", tags=["batches"], dependencies=[READ])

PURPOSE = "batch"


@router.post("", summary="Answer the requests of an uploaded file", dependencies=[SUBMIT])
def create_batch(
    services: ServicesDep,
    background: BackgroundTasks,
    request: BatchRequest,
    by: Caller,
    idempotency_key: IdempotencyKey = None,
) -> Batch:
    """The service reads the file after this answer; `GET /v1/batches/{id}` lists invalid lines.

    A repeated request with the same `Idempotency-Key` gets the batch of the first one, as it is now.
    """
    require_priority(services, request.priority)
    key = request_key(idempotency_key, request)
    with services.database.read() as session:
        input_file_id = pages.full_id(session, request.input_file_id, "file")
    request = request.model_copy(update={"input_file_id": input_file_id})
    with services.database.write() as session:
        row = None if key is None else request_keys.made_with(session, BatchRow, by, key)
        if row is None:
            _check_input(session, request.input_file_id, services.settings.batch_max_bytes)
            with request_keys.first_wins():
                row = batches.create(session, request, by, key)
            # the background thread continues if this process ends early
            background.add_task(advance, services, row.id)
        return batches.resource(session, row)


def _check_input(session: Session, file_id: str, most: int) -> None:
    """Raises InvalidRequest or PayloadTooLarge if the file cannot be the input of a batch."""
    try:
        file = files.keep(session, file_id)
    except NotFound:
        raise InvalidRequest(
            f"there is no file {file_id}; upload it through /v1/files", param="input_file_id"
        ) from None
    if file.purpose != PURPOSE:
        raise InvalidRequest(
            f"file {file.id} has the purpose {file.purpose}; upload it with the purpose {PURPOSE}",
            param="input_file_id",
        )
    if file.bytes > most:
        raise PayloadTooLarge(
            f"the input file has {file.bytes} bytes, a batch may have {most} "
            "(ACTOGRAPH_BATCH_MAX_BYTES); split it"
        )


@router.get("", summary="List batches")
def list_batches(services: ServicesDep, page: PageDep) -> ListPage[Batch]:
    with services.database.read() as session:
        found = batches.find(session, **page)
        return pages.page(*found, lambda row: batches.resource(session, row))


@router.get("/{batch_id}", summary="One batch")
def get_batch(services: ServicesDep, batch_id: BatchId) -> Batch:
    with services.database.read() as session:
        return batches.resource(session, batches.get(session, batch_id))


@router.post("/{batch_id}/cancel", summary="Cancel a batch; finished answers are kept", dependencies=[SUBMIT])
def cancel_batch(services: ServicesDep, batch_id: BatchId, background: BackgroundTasks) -> Batch:
    """The batch is `cancelling` until its output files are written."""
    with services.database.write() as session:
        answer = batches.resource(session, batches.cancel(session, batch_id))
    background.add_task(advance, services, batch_id)
    return answer
