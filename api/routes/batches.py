"""/v1/batches in OpenAI's form."""

from typing import Annotated

from fastapi import APIRouter, BackgroundTasks, Depends
from sqlalchemy.orm import Session
from starlette.responses import JSONResponse

from actograph.contract.batches import Batch, BatchRequest
from actograph.contract.errors import InvalidRequest, NotFound, PayloadTooLarge
from actograph.contract.resources import ListPage
from api.dependencies import PageDep, ServicesDep, known_id, require_priority
from api.openai.batch_keeper import BatchKeeper
from api.problems.errors import documented
from api.problems.validation import parse_body
from api.requests.answered_once import IdempotencyKey, Keep, answered_once
from api.requests.request_body import body_of, json_body
from api.security.auth import caller
from api.submission import webhook_targets
from storage.files import files
from storage.index import pages
from storage.jobs import batches
from storage.submission.idempotency import StoredAnswer

router = APIRouter(prefix="/v1/batches", tags=["batches"])

PURPOSE = "batch"


@router.post(
    "",
    operation_id="create_batch",
    summary="Answer the requests of an uploaded file",
    response_model=Batch,
    responses=documented(409, 413, 415, 422),
    openapi_extra=body_of("BatchRequest"),
)
def create_batch(
    services: ServicesDep,
    background: BackgroundTasks,
    body: Annotated[bytes, Depends(json_body)],
    by: Annotated[str, Depends(caller)],
    idempotency_key: IdempotencyKey = None,
) -> JSONResponse:
    """The file is read after the answer: `GET /v1/batches/{id}` tells the lines at fault, if any.

    With an `Idempotency-Key` a repeated request gets the first one's answer.
    """
    request = parse_body(BatchRequest, body)
    require_priority(services, request.priority)
    webhook = webhook_targets.check(services.settings, request.webhook)
    request = request.model_copy(update={"webhook": webhook})

    def create(keep: Keep) -> StoredAnswer:
        with services.database.write() as session:
            _check_input(session, request.input_file_id, services.settings.batch_max_bytes)
            row = batches.create(session, request, by)
            answer = StoredAnswer(200, batches.resource(session, row).model_dump(mode="json"))
            keep(session, answer)
        # where the process ends before it is done, the reconciler goes on
        background.add_task(BatchKeeper(services).advance_later, row.id)
        return answer

    answer = answered_once(services, by, idempotency_key, b"POST /v1/batches\n" + body, create)
    return JSONResponse(answer.response, answer.status_code)


def _check_input(session: Session, file_id: str, most: int) -> None:
    """Raises InvalidRequest or PayloadTooLarge where the file cannot be that of a batch."""
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


@router.get(
    "",
    operation_id="list_batches",
    summary="List batches",
    response_model=ListPage[Batch],
    responses=documented(422),
)
def list_batches(services: ServicesDep, page: PageDep) -> ListPage[Batch]:
    with services.database.read() as session:
        rows, has_more = batches.find(session, after=page.after, limit=page.limit, order=page.order)
        return pages.page(rows, has_more, lambda row: batches.resource(session, row))


@router.get(
    "/{batch_id}",
    operation_id="get_batch",
    summary="One batch",
    response_model=Batch,
    responses=documented(404, 422),
)
def get_batch(services: ServicesDep, batch_id: str) -> Batch:
    with services.database.read() as session:
        return batches.resource(session, batches.get(session, known_id(batch_id, "batch", "batch")))


@router.post(
    "/{batch_id}/cancel",
    operation_id="cancel_batch",
    summary="End a batch; what finished is kept",
    response_model=Batch,
    responses=documented(404, 409, 422),
)
def cancel_batch(services: ServicesDep, batch_id: str, background: BackgroundTasks) -> Batch:
    """It is `cancelling` until its output files are written."""
    known_id(batch_id, "batch", "batch")
    with services.database.write() as session:
        answer = batches.resource(session, batches.cancel(session, batch_id))
    background.add_task(BatchKeeper(services).advance_later, batch_id)
    return answer
