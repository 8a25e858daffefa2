"""One session: facts, tokens with their activations, messages and files, and the form that changes it."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Form, Query, Request
from pydantic import BeforeValidator
from starlette.responses import Response

from actograph.contract import hooks
from actograph.contract.errors import StoreDamaged
from actograph.contract.job_specs import validated
from actograph.contract.resources import Session
from actograph.contract.specs import SessionUpdate
from actograph.viewer.points import first_shown, heads_of, points_of
from api.auth import READ, SUBMIT
from api.dependencies import ServicesDep, SessionId
from api.pages.rendering import render, see_other
from api.routes import sessions as routes
from storage import samples
from storage.analyses import stored
from storage.sessions import sessions, vectors
from storage.sessions.filter import SessionFilter
from storage.sessions.manifest import SessionManifest
from storage.tables.models import VectorRow

router = APIRouter(prefix="/sessions/{session_id}", include_in_schema=False, dependencies=[READ])

#: vectors, and sessions of the same problem, to choose from
OFFERED = 100
#: characters of a message
SHOWN = 20_000
State = Annotated[str, Query(max_length=1024)]


async def viewer_state(
    *,
    hook: State = "",
    of: State = "",
    channel: State = "",
    vector: State = "",
    align: State = "",
    difference: State = "",
    linear: State = "",
    shared: State = "",
    first: State = "",
    token: State = "",
    attention: State = "",
    head: State = "",
) -> None:
    """Declare the choices that `viewer.js` keeps in the address. The server does not read them."""


@router.get("", dependencies=[Depends(viewer_state)])
def show_session(
    request: Request,
    services: ServicesDep,
    session_id: SessionId,
    other: Annotated[str, Query(alias="with", max_length=64)] = "",
) -> Response:
    shown = [routes.get_session(services, one) for one in (session_id, other) if one]
    first, points = shown[0], points_of(shown[0].hooks)
    manifest, trouble = None, ""
    try:
        manifest = routes.get_session_manifest(services, session_id)
    except StoreDamaged as error:
        trouble = error.message
    same = SessionFilter(job_id=first.job_id, sample_index=first.sample_index)
    with services.database.read() as session:
        peers, _ = sessions.find(session, same, limit=OFFERED)
        replays, _ = sessions.find(session, SessionFilter(source_session=session_id), limit=1)
        offered, _ = vectors.find(session, limit=OFFERED)
        probes = stored.of_job(session, "probe", first.job_id)
        has_logprobs = [samples.get(session, one.sample_id).logprobs is not None for one in shown]
    values = {
        "session": first,
        "panes": [(one, _about(one)) for one in shown],
        "points": points if manifest else {},
        "hook": first_shown(points),
        "heads": _heads(shown, manifest) if manifest else {},
        "has_logprobs": all(has_logprobs),
        "vectors": _fitting(offered, first),
        "probes": [(row.id, row.job_id) for row in probes],
        "has_replays": bool(replays),
        "compared": {name: one.compared for name, one in first.hooks.items() if one.compared},
        "peers": [row for row in peers if row.id != first.id],
        "messages": _messages(manifest) if manifest else [],
        "origin": manifest.model_dump(exclude=_ELSEWHERE) if manifest else {},
        "trouble": trouble,
        "shown": SHOWN,
    }
    return render(request, "session.html", values)


def _heads(shown: Sequence[Session], manifest: SessionManifest) -> dict[int, int]:
    """Layers whose attention the first session can show, each with its number of heads."""
    if len(manifest.turns) > 1:  # a turn does not see all tokens before it
        return {}
    known = {layer: manifest.attention.get(layer) for layer in heads_of(shown[0].hooks)}
    return {layer: of.heads for layer, of in known.items() if of is not None and of.unproved is None}


#: fields of a manifest that the page shows elsewhere, or that are long
_ELSEWHERE = {"tensors", "files", "segments", "token_texts", "token_ids", "row_positions"}


def _split(texts: list[str]) -> list[str]:
    return [tag.strip() for text in texts for tag in text.split(",") if tag.strip()]


Tags = Annotated[list[str], BeforeValidator(_split), Form()]


@router.post("", dependencies=[SUBMIT])
def change_session(
    services: ServicesDep,
    session_id: SessionId,
    action: Annotated[Literal["pin", "unpin", "tag", "delete"], Form()],
    tags: Tags = [],  # noqa: B006 (an empty field is no field)
) -> Response:
    """Pin, tag or delete a session. `tags` replace all others; commas separate them."""
    if action == "delete":
        job_id = routes.get_session(services, session_id).job_id
        routes.delete_session(services, session_id)
        return see_other(f"/jobs/{job_id}")
    change = validated(SessionUpdate, {"tags": tags} if action == "tag" else {"pinned": action == "pin"})
    routes.update_session(services, session_id, change)
    return see_other(f"/sessions/{session_id}")


def _fitting(offered: Sequence[VectorRow], shown: Session) -> list[tuple[str, str, str]]:
    """Id, name and hook of the vectors of this session's model and hooks."""
    found = []
    for row in offered:
        hook = hooks.canonical(row.hook) or row.hook
        info = shown.hooks.get(hook)
        if info is not None and info.shape[1] == row.width and row.model in (None, shown.model):
            found.append((row.id, f"{row.name} ({hook})", hook))
    return found


def _about(shown: Session) -> dict[str, Any]:
    """Facts of a session for the viewer's scripts."""
    return shown.model_dump(include={"id", "job_id", "prompt_tokens", "generated_tokens"}) | {
        "points": points_of(shown.hooks)
    }


def _messages(manifest: SessionManifest) -> list[tuple[str, str]]:
    """Name and text of each segment: prompt, thoughts, answers, calls and results of tools."""
    texts = manifest.token_texts
    return [(one.name, "".join(texts[one.start : one.stop])) for one in manifest.segments if texts]
