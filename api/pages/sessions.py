"""One session: facts, tokens with their activations, messages and files, and the forms that change it."""

from typing import Annotated, Any

from fastapi import APIRouter, Form, Query, Request
from pydantic import BeforeValidator, Field
from starlette.responses import Response

from actograph.contract import hooks
from actograph.contract.base import MAX_TAGS, Tag
from actograph.contract.errors import NotFound
from actograph.contract.resources import Session
from actograph.contract.specs import SessionUpdate
from api.auth import READ, SUBMIT
from api.dependencies import Services, ServicesDep, SessionId
from api.pages.rendering import render, see_other
from api.routes import sessions as routes
from storage import samples
from storage.analyses import stored
from storage.sessions import sessions, vectors
from storage.sessions.filter import SessionFilter

router = APIRouter(prefix="/sessions/{session_id}", include_in_schema=False, dependencies=[READ])

#: vectors, and sessions of the same problem, to choose from
OFFERED = 100


@router.get("")
def show_session(
    request: Request,
    services: ServicesDep,
    session_id: SessionId,
    other: Annotated[str, Query(alias="with", max_length=64)] = "",
) -> Response:
    shown, trouble = [routes.get_session(services, session_id)], ""
    if other:
        try:
            shown.append(routes.get_session(services, other))
        except NotFound as error:
            trouble = error.message
    first = shown[0]
    names = sorted(_usable(first), key=lambda name: (hooks.point_of(name), hooks.layer_of(name) or 0))
    residual = [name for name in names if hooks.point_of(name) == "resid_post"] or names
    same = SessionFilter(job_id=first.job_id, sample_index=first.sample_index)
    with services.database.read() as session:
        peers, _ = sessions.find(session, same, limit=OFFERED)
        offered, _ = vectors.find(session, limit=OFFERED)
        probes = stored.of_job(session, "probe", first.job_id)
    widths = {info.shape[1] for info in first.hooks.values()}
    values = {
        "session": first,
        "panes": [(one, _about(services, one)) for one in shown],
        "other": other,
        "trouble": trouble,
        "hooks": names,
        "hook": residual[(len(residual) - 1) // 2] if residual else None,
        "vectors": [vectors.info(row) for row in offered if row.width in widths],
        "probes": [row.job_id for row in probes],
        "peers": [row for row in peers if row.id != first.id],
        "messages": _messages(services, session_id) if names else [],
    }
    return render(request, "session.html", values)


@router.post("/pin", dependencies=[SUBMIT])
def pin_session(
    services: ServicesDep, session_id: SessionId, pinned: Annotated[bool, Form()] = False
) -> Response:
    routes.update_session(services, session_id, SessionUpdate(pinned=pinned))
    return see_other(f"/sessions/{session_id}")


def _split(values: list[str]) -> list[str]:
    return [tag.strip() for value in values for tag in value.split(",") if tag.strip()]


Tags = Annotated[list[Tag], BeforeValidator(_split), Field(max_length=MAX_TAGS), Form()]


@router.post("/tags", dependencies=[SUBMIT])
def tag_session(services: ServicesDep, session_id: SessionId, tags: Tags = []) -> Response:  # noqa: B006
    """Replace all tags by those of a text, which commas separate."""
    routes.update_session(services, session_id, SessionUpdate(tags=tags))
    return see_other(f"/sessions/{session_id}")


@router.post("/delete", dependencies=[SUBMIT])
def delete_session(services: ServicesDep, session_id: SessionId) -> Response:
    job_id = routes.get_session(services, session_id).job_id
    routes.delete_session(services, session_id)
    return see_other(f"/jobs/{job_id}")


def _usable(shown: Session) -> dict[str, Any]:
    """The hooks with a row for each token, in a dtype that numpy has."""
    return {
        name: info.model_dump(include={"shape", "first_row", "position_offset"})
        for name, info in shown.hooks.items()
        if info.summary is None and info.shape[0] and not info.dtype.startswith("F8")
    }


def _about(services: Services, shown: Session) -> dict[str, Any]:
    """What the viewer's scripts know of a session."""
    with services.database.read() as session:
        has_logprobs = samples.get(session, shown.sample_id).logprobs is not None
        has_lens = bool(stored.of_job(session, "lens", shown.job_id))
    known = shown.model_dump(include={"id", "prompt_tokens", "generated_tokens"})
    return known | {"hooks": _usable(shown), "logprobs": has_logprobs, "lens": has_lens}


def _messages(services: Services, session_id: str) -> list[tuple[str, str]]:
    """Name and text of each segment: prompt, thoughts, answers, calls and results of tools."""
    manifest = routes.reader_of(services, session_id).manifest
    texts = manifest.token_texts
    return [(one.name, "".join(texts[one.start : one.stop])) for one in manifest.segments if texts]
