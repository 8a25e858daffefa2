"""/v1/activations/sessions: search, read, change and delete stored sessions."""

import time
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request
from starlette.responses import Response

from actograph.contract import resources
from actograph.contract.base import Deleted, ListPage
from actograph.contract.errors import InvalidRequest, NotFound, StoreDamaged
from actograph.contract.models import ModelStructure
from actograph.contract.operations import StoreUsage
from actograph.contract.resources import SessionChange, SessionDeletion, SessionScoresRequest, SessionStats
from actograph.contract.specs import SessionUpdate
from actograph.contract.suggestions import did_you_mean
from api.auth import READ, SUBMIT
from api.dependencies import PageDep, Services, ServicesDep, SessionId, resolved
from api.reading import attention, downloads
from api.reading.tensor_slices import Format, answer
from storage.accounts import quotas
from storage.artifacts.checked_files import CheckedFile
from storage.index import pages
from storage.sessions import changes, sessions
from storage.sessions.manifest import MANIFEST_NAME, SessionManifest
from storage.sessions.reader import SessionReader, open_session
from storage.sessions.sessions import SessionFilter

router = APIRouter(prefix="/v1/activations", tags=["sessions"], dependencies=[READ])

ALIAS = "/session/{session_id}"


def _filter(services: ServicesDep, wanted: Annotated[SessionFilter, Query()]) -> SessionFilter:
    return resolved(services, wanted)


FilterDep = Annotated[SessionFilter, Depends(_filter)]


async def _many(
    wanted: FilterDep,
    everything: Annotated[bool, Query(alias="all", description="Required without a filter.")] = False,
) -> SessionFilter:
    """Raises InvalidRequest without a filter, unless the request says that all sessions are meant."""
    if wanted == SessionFilter() and not everything:
        raise InvalidRequest("name a filter, or say all=true for every session", param="all")
    return wanted


ManyDep = Annotated[SessionFilter, Depends(_many)]
DryRun = Annotated[bool, Query(description="Only count the sessions.")]


@router.get("/sessions", summary="Search sessions")
def list_sessions(services: ServicesDep, wanted: FilterDep, page: PageDep) -> ListPage[resources.Session]:
    with services.database.read() as session:
        rows, has_more = sessions.find(session, wanted, **page)
        found = {item.id: item for item in sessions.resources_of(session, rows)}
    return pages.page(rows, has_more, lambda row: found[row.id])


@router.delete("/sessions", summary="Delete every matching session", dependencies=[SUBMIT])
def delete_sessions(
    services: ServicesDep,
    wanted: ManyDep,
    dry_run: DryRun = False,
    include_pinned: Annotated[bool, Query(description="Delete pinned sessions too.")] = False,
) -> SessionDeletion:
    """Delete matching sessions at once; files are removed in the background.

    Pinned sessions stay. Sessions created during the request stay too.
    """
    going = changes.deletable(wanted, include_pinned=include_pinned)
    with services.database.read() as session:
        totals = sessions.totals(session, going)
        kept = sessions.totals(session, wanted).sessions - totals.sessions
    if dry_run:
        return SessionDeletion(dry_run=True, sessions=totals.sessions, bytes=totals.bytes, pinned=kept)
    gone = changes.delete_matching(services.database, wanted, include_pinned=include_pinned)
    return SessionDeletion(dry_run=False, sessions=gone.sessions, bytes=gone.bytes, pinned=kept)


@router.patch(
    "/sessions", summary="Change expiry, pin or tags of every matching session", dependencies=[SUBMIT]
)
def update_sessions(
    services: ServicesDep,
    wanted: ManyDep,
    change: SessionUpdate,
    dry_run: DryRun = False,
) -> SessionChange:
    """Change matching sessions. Sessions created during the request stay unchanged."""
    _require_future(change)
    if dry_run:
        with services.database.read() as session:
            return SessionChange(dry_run=True, sessions=sessions.totals(session, wanted).sessions)
    count = changes.update_matching(services.database, wanted, change)
    return SessionChange(dry_run=False, sessions=count)


@router.post("/sessions/scores", summary="Store scores by another program", dependencies=[SUBMIT])
def score_sessions(services: ServicesDep, request: SessionScoresRequest) -> SessionChange:
    """Store scores and verdicts. Sessions show them, and matrices take them as labels."""
    with services.database.write() as session:
        changes.score(session, request.sessions)
    return SessionChange(dry_run=False, sessions=len(request.sessions))


@router.get("/sessions/stats", summary="Number and size of matching sessions")
def get_session_stats(services: ServicesDep, wanted: FilterDep) -> SessionStats:
    with services.database.read() as session:
        return sessions.totals(session, wanted)


@router.get("/stats", summary="Stored bytes by owner, and what the quotas leave")
def get_store_usage(services: ServicesDep) -> StoreUsage:
    with services.database.read() as session:
        return quotas.shown(session, services.settings)


@router.get("/sessions/{session_id}", summary="One session")
@router.get(ALIAS, summary="Alias of the route above", name="get_session_alias")
def get_session(services: ServicesDep, session_id: SessionId) -> resources.Session:
    with services.database.read() as session:
        return sessions.resources_of(session, [sessions.get(session, session_id)])[0]


@router.delete("/sessions/{session_id}", summary="Delete a session and its files", dependencies=[SUBMIT])
@router.delete(ALIAS, summary="Alias of the route above", dependencies=[SUBMIT], name="delete_session_alias")
def delete_session(services: ServicesDep, session_id: SessionId) -> Deleted:
    """Delete a session at once; files are removed in the background. Unpin a pinned session first."""
    with services.database.write() as session:
        changes.delete(session, session_id)
    return Deleted(id=session_id, object="activation.session")


@router.patch(
    "/sessions/{session_id}", summary="Change expiry, pin or tags of a session", dependencies=[SUBMIT]
)
@router.patch(ALIAS, summary="Alias of the route above", dependencies=[SUBMIT], name="update_session_alias")
def update_session(services: ServicesDep, session_id: SessionId, change: SessionUpdate) -> resources.Session:
    _require_future(change)
    with services.database.write() as session:
        sessions.get(session, session_id)
        changes.update(session, [session_id], change)
    return get_session(services, session_id)


@router.get("/sessions/{session_id}/manifest", summary="Origin and layout of a session")
def get_session_manifest(services: ServicesDep, session_id: SessionId) -> SessionManifest:
    return reader_of(services, session_id).manifest


@router.get(
    "/sessions/{session_id}/tensors/{hook:path}",
    summary="Rows of one tensor",
    response_class=Response,
    responses=downloads.binary(
        "The rows, or JSON. In safetensors bfloat16 stays bfloat16, otherwise it becomes float32."
    ),
)
def get_session_tensor(
    services: ServicesDep,
    session_id: SessionId,
    hook: str,
    rows: Annotated[str | None, Query(description="start:stop within the tensor; default: all.")] = None,
    form: Annotated[Format, Query(alias="format")] = "safetensors",
) -> Response:
    """Read rows of `hook`: a tensor, an alias of one, `token_ids` or `row_positions`."""
    reader = reader_of(services, session_id)

    def structure() -> ModelStructure | None:
        with services.database.read() as session:
            return services.structures.find(session, reader.manifest.model)

    return answer(reader, hook, rows, form, structure)


@router.get(
    "/sessions/{session_id}/attention/{layer}",
    summary="Attention of one layer",
    response_class=Response,
    responses=downloads.binary(
        "float32 [rows, heads, tokens], or [rows, tokens] of one head, as .npy or JSON: the share of each "
        "token before the end of `rows`."
    ),
)
def get_session_attention(
    services: ServicesDep,
    session_id: SessionId,
    layer: Annotated[int, Path(ge=0, le=1_000_000)],
    *,
    head: Annotated[int | None, Query(ge=0, le=1_000_000, description="Default: all heads.")] = None,
    rows: Annotated[str | None, Query(description="start:stop, in tokens; default: all.")] = None,
    form: Annotated[attention.Format, Query(alias="format")] = "npy",
) -> Response:
    """Compute attention from the stored `q` and `k` of a layer, as the model computes it.

    Needs rows of `q` for the tokens of `rows`, and of `k` for all tokens that they see.
    """
    return attention.answer(reader_of(services, session_id), layer, head, rows, form)


@router.head("/sessions/{session_id}/files/{name}", include_in_schema=False)
@router.get(
    "/sessions/{session_id}/files/{name}",
    summary="A file of a session",
    response_class=Response,
    responses=downloads.RESPONSES,
)
def get_session_file(services: ServicesDep, request: Request, session_id: SessionId, name: str) -> Response:
    with services.database.read() as session:
        files = sessions.files_of(sessions.get(session, session_id))
    file = files.get(name)
    if file is None:
        raise NotFound(f"session {session_id} has no file {name}{did_you_mean(name, files)}")
    key = f"sessions/{session_id}/{name}"
    return downloads.serve(
        request,
        services.store,
        CheckedFile(services.store, key, size=file.bytes, sha256=file.sha256),
        media_type="application/json" if name.endswith(".json") else "application/octet-stream",
        filename=name,
        redirects=services.settings.downloads == "redirect",
    )


def _require_future(change: SessionUpdate) -> None:
    if change.expires_at is not None and change.expires_at <= time.time():
        raise InvalidRequest("expires_at lies in the past; delete the sessions instead", param="expires_at")


def reader_of(services: Services, session_id: SessionId) -> SessionReader:
    """A reader of an indexed session.

    Raises:
        NotFound: the session is not in the index.
        StoreDamaged: the session has no manifest in the store.
    """
    with services.database.read() as session:
        recorded = sessions.files_of(sessions.get(session, session_id))[MANIFEST_NAME]
    reader = open_session(services.store, session_id, recorded)
    try:
        _ = reader.manifest
    except NotFound:
        get_session(services, session_id)  # NotFound if it was deleted just now
        message = f"session {session_id} has no {MANIFEST_NAME} in the store"
        raise StoreDamaged(message, artifact=session_id, file=MANIFEST_NAME) from None
    return reader
