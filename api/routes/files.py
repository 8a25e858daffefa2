"""/v1/files, in OpenAI's form: uploaded datasets and batches, and output of batches."""

from collections.abc import AsyncGenerator
from contextlib import suppress
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field
from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.responses import Response

from actograph.contract.base import Deleted, ListPage
from actograph.contract.errors import Conflict, InvalidRequest, PayloadTooLarge
from actograph.contract.job_specs import validated
from actograph.contract.operations import File
from actograph.contract.specs import MAX_EXPIRY_SECONDS
from actograph.contract.suggestions import did_you_mean
from api.auth import READ, SUBMIT, Caller
from api.dependencies import FileId, Services, ServicesDep, paging
from api.middleware.bodies import MULTIPART_OVERHEAD
from api.reading import downloads
from storage.accounts import quotas
from storage.files import files
from storage.index import pages
from storage.index.pages import PageOptions
from storage.queue import pause

router = APIRouter(prefix="/v1/files", tags=["files"], dependencies=[READ])

CHUNK = 1 << 20
#: bytes of an upload between two checks of its room
CHECKED_BYTES = 16 << 20
MAX_NAME = 255


class UploadFields(BaseModel):
    """The fields of an upload beside its file, as texts."""

    purpose: str = Field(
        "dataset",
        min_length=1,
        max_length=64,
        pattern=r"^[\w.\-]+$",
        description="`batch`, or any word.",
    )
    anchor: Literal["created_at"] | None = Field(None, alias="expires_after[anchor]")
    expires: int | None = Field(
        None,
        alias="expires_after[seconds]",
        ge=1,
        le=MAX_EXPIRY_SECONDS,
        description="The file is deleted so long from now, once nothing reads it.",
    )


def _form() -> dict[str, Any]:
    """The form of an upload for the document. FastAPI would read it before anything is checked."""
    schema = UploadFields.model_json_schema()
    schema["properties"]["file"] = {"type": "string", "format": "binary", "description": "The file."}
    content = {"multipart/form-data": {"schema": schema | {"required": ["file"]}}}
    return {"requestBody": {"required": True, "content": content}}


@router.post("", summary="Upload a file", dependencies=[SUBMIT], openapi_extra=_form())
async def upload_file(services: ServicesDep, request: Request, by: Caller) -> File:
    """Store a file. Role, quota and room are checked before it is read, and again while it arrives."""
    expected = int(request.headers.get("content-length", 0))
    await run_in_threadpool(_require_room, services, by, expected - MULTIPART_OVERHEAD)
    if not request.headers.get("content-type", "").startswith("multipart/form-data"):
        raise InvalidRequest("send the file as multipart/form-data, in the field file", param="file")
    parser = MultiPartParser(request.headers, _arriving(services, request, by), max_files=1, max_fields=8)
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise InvalidRequest(f"the form cannot be read: {error.message}") from None
    try:
        file, fields = _read_form(form)
        return await run_in_threadpool(store_upload, services, by, file, fields)
    finally:
        await form.close()


async def _arriving(services: Services, request: Request, by: str) -> AsyncGenerator[bytes, None]:
    """The body as it arrives. Without a length beforehand its room is checked as it grows."""
    received = checked = 0
    async for chunk in request.stream():
        received += len(chunk)
        if received - checked >= CHECKED_BYTES:
            checked = received
            await run_in_threadpool(_require_room, services, by, received - MULTIPART_OVERHEAD)
        yield chunk


def _require_room(services: Services, by: str, size: int) -> None:
    """Raises PayloadTooLarge, StorageFull or QuotaExceeded if a file of so many bytes has no room."""
    settings = services.settings
    if size > settings.max_upload_bytes:
        raise PayloadTooLarge(
            f"the file is larger than {settings.max_upload_bytes} bytes (ACTOGRAPH_MAX_UPLOAD_BYTES)"
        )
    pause.require_room(services.store, settings.disk_floor_bytes, max(0, size))
    with services.database.read() as session:
        quotas.read(session, settings).require(by, max(1, size), "the file", param="file")


def _read_form(form: FormData) -> tuple[UploadFile, UploadFields]:
    """The file and the other fields. Raises InvalidRequest."""
    given = form.multi_items()
    names = [name for name, _ in given]
    for name in names:
        if names.count(name) > 1:
            raise InvalidRequest(f"the field {name[:100]} is given twice", param=name[:100])
    file = form.get("file")
    if not isinstance(file, UploadFile):
        raise InvalidRequest("the form has no file in the field file", param="file")
    others = {name: value for name, value in given if name != "file"}
    known = [field.alias or name for name, field in UploadFields.model_fields.items()]
    for name in others:
        if name not in known:
            hint = did_you_mean(name, known)
            raise InvalidRequest(f"unknown field {name[:100]!r} of the form{hint}", param=name[:100])
    fields = validated(UploadFields, others)
    if fields.anchor is not None and fields.expires is None:
        raise InvalidRequest("give expires_after[seconds] too", param="expires_after[seconds]")
    return file, fields


def store_upload(services: Services, by: str, file: UploadFile, fields: UploadFields) -> File:
    """Store a file that has arrived. Raises the errors of `_require_room`, and InvalidRequest."""
    if not (size := file.size or 0):
        raise InvalidRequest("the file is empty", param="file")
    _require_room(services, by, size)
    # it is shown and never opened: without folders and control characters
    last = (file.filename or "").replace("\\", "/").rpartition("/")[2]
    name = "".join(c for c in last if c.isprintable())[:MAX_NAME] or "upload"
    with services.database.write() as session:
        file_id = files.announce(
            session,
            filename=name,
            purpose=fields.purpose,
            size=size,
            owner=by,
            expires_after=fields.expires,
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
            advice = "delete it" if reader.startswith("SAE") else "wait for its end or cancel it first"
            raise Conflict(f"{reader} reads file {file_id}; {advice}")
        files.delete(session, file_id)
    return Deleted(id=file_id, object="file")
