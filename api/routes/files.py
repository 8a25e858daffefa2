"""/v1/files, in OpenAI's form: uploaded datasets and batches, and output of batches."""

from contextlib import suppress
from functools import partial
from typing import Annotated, Literal

from fastapi import APIRouter, Form, Query, Request, UploadFile
from sqlalchemy.exc import SQLAlchemyError
from starlette.responses import Response

from actograph.contract.base import Deleted, ListPage
from actograph.contract.errors import Conflict, InvalidRequest, PayloadTooLarge
from actograph.contract.operations import File
from actograph.contract.specs import MAX_EXPIRY_SECONDS
from api.auth import READ, SUBMIT, Caller
from api.dependencies import FileId, ServicesDep, paging
from api.reading import downloads
from storage.accounts import quotas
from storage.files import files
from storage.index import pages
from storage.index.pages import PageOptions
from storage.queue import pause

router = APIRouter(prefix="/v1/files", tags=["files"], dependencies=[READ])

CHUNK = 1 << 20
MAX_NAME = 255


@router.post("", summary="Upload a file", dependencies=[SUBMIT])
def upload_file(
    services: ServicesDep,
    file: UploadFile,
    by: Caller,
    *,
    purpose: Annotated[str, Form(min_length=1, max_length=64, pattern=r"^[\w.\-]+$")] = "dataset",
    anchor: Annotated[Literal["created_at"] | None, Form(alias="expires_after[anchor]")] = None,
    expires: Annotated[int | None, Form(alias="expires_after[seconds]", ge=1, le=MAX_EXPIRY_SECONDS)] = None,
) -> File:
    """`purpose`: `batch`, or any word. Deleted `expires_after[seconds]` from now, once nothing reads it."""
    if anchor is not None and expires is None:
        raise InvalidRequest("give expires_after[seconds] too", param="expires_after[seconds]")
    if not (size := file.size or 0):
        raise InvalidRequest("the file is empty", param="file")
    settings = services.settings
    if size > settings.max_upload_bytes:
        raise PayloadTooLarge(
            f"the file is larger than {settings.max_upload_bytes} bytes (ACTOGRAPH_MAX_UPLOAD_BYTES)"
        )
    pause.require_room(services.store, settings.disk_floor_bytes, size)
    with services.database.read() as session:
        quotas.read(session, settings).require(by, size, "the file", param="file")
    # it is shown and never opened: without folders and control characters
    last = (file.filename or "").replace("\\", "/").rpartition("/")[2]
    name = "".join(c for c in last if c.isprintable())[:MAX_NAME] or "upload"
    with services.database.write() as session:
        file_id = files.announce(
            session, filename=name, purpose=purpose, size=size, owner=by, expires_after=expires
        )
    try:
        pieces = iter(partial(file.file.read, CHUNK), b"")
        size, sha256 = services.store.put_stream(f"files/{file_id}", pieces)
        with services.database.write() as session:
            row = files.publish(session, file_id, size=size, sha256=sha256)
    except BaseException:
        with suppress(SQLAlchemyError), services.database.write() as session:
            files.abandon(session, file_id)
        raise
    return files.resource(row)


@router.get("", summary="List files")
def list_files(
    services: ServicesDep,
    page: Annotated[PageOptions, paging(most=10_000)],
    purpose: Annotated[str | None, Query(max_length=64)] = None,
) -> ListPage[File]:
    with services.database.read() as session:
        return pages.page(*files.find(session, purpose=purpose, **page), files.resource)


@router.get("/{file_id}", summary="One file")
def get_file(services: ServicesDep, file_id: FileId) -> File:
    with services.database.read() as session:
        return files.resource(files.get(session, file_id))


@router.get(
    "/{file_id}/content", summary="Bytes of a file", response_class=Response, responses=downloads.RESPONSES
)
def get_file_content(services: ServicesDep, request: Request, file_id: FileId) -> Response:
    with services.database.read() as session:
        row = files.get(session, file_id)
    return downloads.serve(
        request,
        services.store,
        files.stored(row, services.store),
        media_type="application/octet-stream",
        filename=row.filename,
        redirects=services.settings.downloads == "redirect",
    )


@router.delete("/{file_id}", summary="Delete a file that no active job reads", dependencies=[SUBMIT])
def delete_file(services: ServicesDep, file_id: FileId) -> Deleted:
    with services.database.write() as session:
        files.lock(session, file_id)
        reader = files.reader_of(session, file_id)
        if reader is not None:
            raise Conflict(f"{reader} reads file {file_id}; wait for its end or cancel it first")
        files.delete(session, file_id)
    return Deleted(id=file_id, object="file")
