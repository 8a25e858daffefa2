"""/v1/activations/sessions: what was captured, searched, sliced, downloaded, changed and deleted."""

import time
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response

from actograph.contract import resources
from actograph.contract.errors import InvalidRequest, NotFound, StoreDamaged
from actograph.contract.resources import (
    Deleted,
    ListPage,
    SessionChange,
    SessionDeletion,
    SessionStats,
    StoreUsage,
)
from actograph.contract.specs import SessionUpdate
from api.dependencies import PageDep, Services, ServicesDep, known_id
from api.problems.errors import documented
from api.problems.validation import parse_body
from api.reading import downloads
from api.reading.tensor_slices import Format, answer
from api.requests.request_body import json_body
from storage.accounts import quotas
from storage.artifacts.checked_files import SESSION_CHUNK_BYTES, CheckedFile
from storage.index import pages
from storage.sessions import session_changes, sessions
from storage.sessions.manifest import MANIFEST_NAME, SessionManifest
from storage.sessions.reader import SessionReader, open_session
from storage.sessions.sessions import SessionFilter

router = APIRouter(prefix="/v1/activations", tags=["sessions"])

MAX_INT = 2**31 - 1
UPDATE_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/SessionUpdate"}}},
    }
}

Seconds = Annotated[float | None, Query(allow_inf_nan=False, description="Unix seconds.")]


def _filter(
    *,
    services: ServicesDep,
    id_prefix: Annotated[str | None, Query(pattern="^ses_[0-9a-f]{1,32}$")] = None,
    job_id: Annotated[str | None, Query(max_length=64)] = None,
    model: Annotated[str | None, Query(max_length=1024)] = None,
    condition: Annotated[str | None, Query(max_length=64)] = None,
    sample_index: Annotated[int | None, Query(ge=0, le=MAX_INT)] = None,
    correct: Annotated[bool | None, Query(description="Verdict of the task's first scorer.")] = None,
    tag: Annotated[str | None, Query(max_length=64)] = None,
    owner: Annotated[str | None, Query(max_length=64, description="Who submitted the job.")] = None,
    pinned: Annotated[bool | None, Query()] = None,
    created_after: Seconds = None,
    created_before: Seconds = None,
    expires_before: Seconds = None,
) -> SessionFilter:
    return SessionFilter(
        id_prefix=id_prefix,
        job_id=job_id,
        # a model that is no longer served keeps its sessions
        model=(services.models.find(model) or model) if model is not None else None,
        condition=condition,
        sample_index=sample_index,
        correct=correct,
        tag=tag,
        owner=owner,
        pinned=pinned,
        created_after=created_after,
        created_before=created_before,
        expires_before=expires_before,
    )


EverythingQuery = Annotated[bool, Query(alias="all", description="Needed where no filter is given.")]
FilterDep = Annotated[SessionFilter, Depends(_filter)]


@router.get(
    "/sessions",
    operation_id="list_sessions",
    summary="Search sessions",
    response_model=ListPage[resources.Session],
    responses=documented(422),
)
def list_sessions(services: ServicesDep, wanted: FilterDep, page: PageDep) -> ListPage[resources.Session]:
    with services.database.read() as session:
        rows, has_more = sessions.find(session, wanted, after=page.after, limit=page.limit, order=page.order)
        found = {item.id: item for item in sessions.resources_of(session, rows)}
    return pages.page(rows, has_more, lambda row: found[row.id])


@router.delete(
    "/sessions",
    operation_id="delete_sessions",
    summary="Delete every session that fits",
    response_model=SessionDeletion,
    responses=documented(422),
)
def delete_sessions(
    services: ServicesDep,
    wanted: FilterDep,
    dry_run: Annotated[bool, Query(description="Only count what would go.")] = False,
    everything: EverythingQuery = False,
    include_pinned: Annotated[bool, Query(description="Delete pinned sessions too.")] = False,
) -> SessionDeletion:
    """They are gone at once, and their files are removed in the background.

    Pinned sessions stay, and so do those that are created while this runs.
    """
    _require_filter(wanted, everything=everything)
    going = session_changes.deletable(wanted, include_pinned=include_pinned)
    with services.database.read() as session:
        fitting = sessions.totals(session, wanted)
        totals = sessions.totals(session, going)
    kept = fitting.sessions - totals.sessions
    if dry_run:
        return SessionDeletion(dry_run=True, sessions=totals.sessions, bytes=totals.bytes, pinned=kept)
    gone = session_changes.delete_matching(services.database, wanted, include_pinned=include_pinned)
    return SessionDeletion(dry_run=False, sessions=gone.sessions, bytes=gone.bytes, pinned=kept)


@router.patch(
    "/sessions",
    operation_id="update_sessions",
    summary="Change expiry, pin or tags of every session that fits",
    response_model=SessionChange,
    responses=documented(413, 415, 422),
    openapi_extra=UPDATE_BODY,
)
def update_sessions(
    services: ServicesDep,
    wanted: FilterDep,
    body: Annotated[bytes, Depends(json_body)],
    dry_run: Annotated[bool, Query(description="Only count what would change.")] = False,
    everything: EverythingQuery = False,
) -> SessionChange:
    """Sessions that are created while this runs stay as they are."""
    change = _parse_change(body)
    _require_filter(wanted, everything=everything)
    if dry_run:
        with services.database.read() as session:
            return SessionChange(dry_run=True, sessions=sessions.totals(session, wanted).sessions)
    count = session_changes.update_matching(services.database, wanted, change)
    return SessionChange(dry_run=False, sessions=count)


@router.get(
    "/sessions/stats",
    operation_id="get_session_stats",
    summary="Number and size of the sessions that fit",
    response_model=SessionStats,
    responses=documented(422),
)
def get_session_stats(services: ServicesDep, wanted: FilterDep) -> SessionStats:
    with services.database.read() as session:
        return sessions.totals(session, wanted)


@router.get(
    "/stats",
    operation_id="get_store_usage",
    summary="What is stored, by whom, and what the quotas leave",
    response_model=StoreUsage,
)
def get_store_usage(services: ServicesDep) -> StoreUsage:
    with services.database.read() as session:
        return quotas.shown(session, services.settings)


@router.get(
    "/session/{session_id}",
    operation_id="get_session_alias",
    summary="The same as /v1/activations/sessions/{session_id}",
    response_model=resources.Session,
    responses=documented(404, 422),
)
@router.get(
    "/sessions/{session_id}",
    operation_id="get_session",
    summary="One session",
    response_model=resources.Session,
    responses=documented(404, 422),
)
def get_session(services: ServicesDep, session_id: str) -> resources.Session:
    return _session(services, session_id)


@router.delete(
    "/session/{session_id}",
    operation_id="delete_session_alias",
    summary="The same as DELETE /v1/activations/sessions/{session_id}",
    response_model=Deleted,
    responses=documented(404, 409, 422),
)
@router.delete(
    "/sessions/{session_id}",
    operation_id="delete_session",
    summary="Delete a session with its files",
    response_model=Deleted,
    responses=documented(404, 409, 422),
)
def delete_session(services: ServicesDep, session_id: str) -> Deleted:
    """The files are removed in the background. A pinned session is refused: unpin it first."""
    known_id(session_id, "ses", "session")
    with services.database.write() as session:
        sessions.delete(session, session_id)
    return Deleted(id=session_id, object="activation.session")


@router.patch(
    "/session/{session_id}",
    operation_id="update_session_alias",
    summary="The same as PATCH /v1/activations/sessions/{session_id}",
    response_model=resources.Session,
    responses=documented(404, 413, 415, 422),
    openapi_extra=UPDATE_BODY,
)
@router.patch(
    "/sessions/{session_id}",
    operation_id="update_session",
    summary="Change a session's expiry, pin or tags",
    response_model=resources.Session,
    responses=documented(404, 413, 415, 422),
    openapi_extra=UPDATE_BODY,
)
def update_session(
    services: ServicesDep, session_id: str, body: Annotated[bytes, Depends(json_body)]
) -> resources.Session:
    known_id(session_id, "ses", "session")
    change = _parse_change(body)
    with services.database.write() as session:
        sessions.get(session, session_id)
        session_changes.update(session, [session_id], change)
    return _session(services, session_id)


@router.get(
    "/sessions/{session_id}/manifest",
    operation_id="get_session_manifest",
    summary="How a session was made and which bytes hold what",
    response_model=SessionManifest,
    responses=documented(404, 422),
)
def get_session_manifest(services: ServicesDep, session_id: str) -> SessionManifest:
    return _reader(services, session_id, anew=True).manifest


@router.get(
    "/sessions/{session_id}/tensors/{hook:path}",
    operation_id="get_session_tensor",
    summary="Rows of one tensor",
    response_class=Response,
    responses={
        200: {
            "description": "The rows; bfloat16 comes as it is in safetensors and as float32 otherwise.",
            "content": {
                "application/octet-stream": {"schema": {"type": "string", "format": "binary"}},
                "application/json": {"schema": {"type": "object"}},
            },
        },
        **documented(404, 416, 422),
    },
)
def get_session_tensor(
    services: ServicesDep,
    session_id: str,
    hook: str,
    rows: Annotated[
        str | None, Query(description="start:stop, counted within the tensor; all where not given.")
    ] = None,
    form: Annotated[Format, Query(alias="format")] = "safetensors",
) -> Response:
    """`hook` is a tensor or an alias of one, `token_ids` or `row_positions`. Only its rows are read."""
    return answer(_reader(services, session_id), hook, rows, form, services.database)


@router.head("/sessions/{session_id}/files/{name}", include_in_schema=False)
@router.get(
    "/sessions/{session_id}/files/{name}",
    operation_id="get_session_file",
    summary="A file of a session",
    response_class=Response,
    responses=downloads.RESPONSES | documented(404, 416, 422),
)
def get_session_file(services: ServicesDep, request: Request, session_id: str, name: str) -> Response:
    found = _session(services, session_id)
    for file in found.files:
        if file.name == name:
            return downloads.serve(
                request,
                services.store,
                _checked_file(services, session_id, file),
                sha256=file.sha256,
                media_type="application/json" if name.endswith(".json") else "application/octet-stream",
                filename=file.name,
                redirects=services.settings.downloads == "redirect",
            )
    raise NotFound(f"session {session_id} has the files {', '.join(f.name for f in found.files)}")


def _require_filter(wanted: SessionFilter, *, everything: bool) -> None:
    if wanted == SessionFilter() and not everything:
        raise InvalidRequest("name a filter, or say all=true to mean every session", param="all")


def _parse_change(body: bytes) -> SessionUpdate:
    change = parse_body(SessionUpdate, body)
    if change.expires_at is not None and change.expires_at <= time.time():
        raise InvalidRequest("expires_at lies in the past; delete the sessions instead", param="expires_at")
    return change


def _session(services: Services, session_id: str) -> resources.Session:
    known_id(session_id, "ses", "session")
    with services.database.read() as session:
        row = sessions.get(session, session_id)
        return sessions.resources_of(session, [row])[0]


def _reader(services: Services, session_id: str, *, anew: bool = False) -> SessionReader:
    """A reader of a session that the index knows.

    Args:
        anew: read the manifest from the store, also where it is kept in memory.

    Raises:
        NotFound: the index does not know it.
        StoreDamaged: it does, but its manifest is gone.
    """
    known_id(session_id, "ses", "session")
    with services.database.read() as session:
        sessions.get(session, session_id)
        recorded = sessions.file_of(session, session_id, MANIFEST_NAME)
    if anew or recorded is None:
        reader = SessionReader(services.store, session_id, recorded=recorded)
    else:
        reader = open_session(services.store, session_id, recorded)
    try:
        _ = reader.manifest
    except NotFound:
        with services.database.read() as session:
            sessions.get(session, session_id)  # deleted just now?
        message = f"session {session_id} has no {MANIFEST_NAME} in the store"
        raise StoreDamaged(message, artifact=session_id, file=MANIFEST_NAME) from None
    return reader


def _checked_file(services: Services, session_id: str, file: resources.SessionFile) -> CheckedFile:
    """A file of a session, with the digests of its chunks if its manifest has them."""
    if file.bytes <= SESSION_CHUNK_BYTES or file.name == MANIFEST_NAME:
        key = f"sessions/{session_id}/{file.name}"
        return CheckedFile(services.store, key, size=file.bytes, sha256=file.sha256)
    return _reader(services, session_id).file(file.name)
